// A path on a card: its end, where files differ, or the part that holds a word it was looked for by.

import {make, shownText} from './dom.js';

const BEFORE = 6;

/** The path in one line; a word of `text` that it holds is marked and stands where it can be seen. */
export function drawPath(path, text) {
  const name = shownText(path);
  const found = findWord(name, text);
  if (!found) return make('span', {class: 'path clip', title: name}, make('bdi', name));
  const start = found.at > 2 * BEFORE ? found.at - BEFORE : 0;
  const end = found.at + found.length;
  return make('span', {class: 'path clip matching', title: name}, [
    make('bdi', [
      `${start > 0 ? '\u2026' : ''}${name.slice(start, found.at)}`,
      make('mark', name.slice(found.at, end)),
      name.slice(end),
    ]),
  ]);
}

/** The last place of the first of the words that the name holds; the folder is mostly on the label's chip already. */
function findWord(name, text) {
  const lower = name.toLowerCase();
  for (const word of text.toLowerCase().split(/\s+/).filter(Boolean)) {
    const at = lower.lastIndexOf(word);
    if (at >= 0) return {at, length: word.length};
  }
  return null;
}
