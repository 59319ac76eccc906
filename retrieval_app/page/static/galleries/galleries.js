// The list of a server's galleries: it is whole as it was sent; what is added is the theme.

import {applySavedTheme, themeButton} from '../core/theme.js';

/** Show the list in the theme that its visitor wants, and let them change it. */
export function start(element) {
  applySavedTheme();
  element.querySelector('.tools')?.append(themeButton());
}

start(document);
