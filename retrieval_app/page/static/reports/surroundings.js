// What the label list says and offers in the page of an audit; in the place of review/surroundings.js there.

import {button, count} from '../core/dom.js';
import {images, isSuspect, items} from './data.js';
import {readState, writeState} from './local_state.js';

/** Images that are drawn at a time. */
export const PAGE = 250;

/** Where decisions are kept, in a sentence. */
export const KEPT = 'What you decide is kept by this browser; pictures and folders stay as they are.';

/** What is said of the file above the list. */
export const drawHint = () => 'Save it as decisions.csv beside this page: the next audit reads it.';

/** The file to take away: its route, the words of the button, and what is said once it is saved. */
export const FILE = {
  path: 'labels/file',
  text: 'Download decisions',
  after: amount => `${count(amount, 'decision')} written to decisions.csv`,
};

/** What else the list is filtered and sorted by; `turn` is another after a file was loaded. */
export const moreFilters = ({extra}) => ({
  verdict: extra.verdict ?? (items.some(isSuspect) ? 'suspects' : 'all'),
  text: (extra.text ?? '').trim().toLowerCase(),
  sort: extra.sort ?? '-wrong',
  turn: extra.turn ?? 0,
});

/** What leads from a neighbour to its own place in the list; nothing where it has none. */
export function drawLead(id, close, props = {}) {
  const item = items.find(one => one.id === id);
  if (!item || props.class) return null; // the image itself, which is there already
  return button('Go to this image', {class: 'small'}, () => {
    close();
    writeState({
      extra: {
        turn: readState().extra.turn,
        verdict: 'all',
        state: 'all',
        text: images[id].path.slice(-item.path.length),
      },
    });
  });
}
