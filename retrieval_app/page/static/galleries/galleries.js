// The list of a server's galleries: it is whole as it was sent; what is added is the theme.

import {applySavedTheme, themeButton} from '../core/theme.js';

applySavedTheme();
document.querySelector('.tools')?.append(themeButton());
