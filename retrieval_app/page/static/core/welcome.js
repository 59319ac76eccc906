// Introduction above the view on the first visit, until the user dismisses it.

import {button, make} from './dom.js';
import {showKeys} from './keys.js';
import {keep, readKept} from './kept.js';

const WELCOMED = 'welcomed';
const HAS_MOUSE = matchMedia('(hover: hover)').matches;

/** The strip before the views, unless it was dismissed before; `dismissed()` says where the focus goes. */
export function welcome(views, {dismissed}) {
  if (readKept(WELCOMED) !== null) return;
  const strip = make('aside', {class: 'welcome', 'aria-label': 'What can be done here'}, [
    make('p', [
      make('b', HAS_MOUSE ? 'Drop or paste a photo anywhere' : 'Choose or take a photo'),
      ' to find images like it, or search by words.',
      make('span.welcome-more', [
        ' The ',
        make('b', 'Map'),
        ' shows what lies near what, ',
        make('b', 'Quality'),
        ' how well search works, ',
        make('b', 'Labels'),
        ' and ',
        make('b', 'Duplicates'),
        ' what may be wrong.',
      ]),
    ]),
    HAS_MOUSE && button('All keys', {icon: 'keyboard', class: 'quiet small'}, showKeys),
    button('Got it', {class: 'small'}, () => {
      keep(WELCOMED, '1');
      strip.remove();
      dismissed();
    }),
  ]);
  views.prepend(strip);
}
