// One listener for all of the page's keys. A key acts only in its view, never while the user types, nor under a dialog.

import {make} from './dom.js';
import {isDialogOpen, openDialog} from './dialog.js';
import {readState} from './url_state.js';

const groups = [];

/**
 * Keys of a view (null: of every view), with what they do, for the help that `?` shows:
 * `registerKeys('search', 'Search', [{keys: ['/'], does: 'Write a filter', run: event => …}])`.
 * A key is named as the browser does ('ArrowLeft', 'a', '/'), with 'Ctrl+' or 'Shift+' before it. `run` returns false
 * to leave the key to the browser; an entry without `run` is only listed. `whileTyping` lets it act in text fields.
 * `when()` says whether the keys hold now, for a view of several parts.
 *
 * @param {string | null} view
 * @param {string} title
 * @param {any[]} entries
 * @param {{when?: () => boolean}} how
 */
export function registerKeys(view, title, entries, {when = () => true} = {}) {
  groups.push({view, title, entries, when});
}

const holds = (group, view) => (group.view === null || group.view === view) && group.when();

/** The help: what every key of the shown view does. */
export function showKeys() {
  const {view} = readState();
  const shown = groups.filter(group => holds(group, view));
  const drawKey = key => make('kbd', nameOf(key));
  const drawEntry = ({keys, does}) => make('div', make('dt', keys.map(drawKey)), make('dd', does));
  const tables = shown.map(({title, entries}) =>
    make('section.key-group', make('h3', title), make('dl', entries.map(drawEntry))),
  );
  openDialog({title: 'Keyboard', body: make('div.key-groups', tables)});
}

const NAMES = {ArrowLeft: '←', ArrowRight: '→', ArrowUp: '↑', ArrowDown: '↓', Escape: 'Esc', ' ': 'Space'};

const nameOf = key =>
  key
    .split('+')
    .map(part => NAMES[part] ?? (part.length === 1 ? part.toUpperCase() : part))
    .join(' + ') || '+';

/** True where keys write text or move a control, so that the page must not take them. */
function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || ['TEXTAREA', 'SELECT'].includes(target.tagName)) return true;
  return target instanceof HTMLInputElement && !['checkbox', 'radio', 'button', 'file'].includes(target.type);
}

function matches(event, key) {
  const wanted = key.length > 1 ? key.split('+') : [key];
  const name = wanted.at(-1);
  const shift = wanted.includes('Shift');
  if ((event.ctrlKey || event.metaKey) !== wanted.includes('Ctrl') || event.altKey) return false;
  if (shift && !event.shiftKey) return false;
  if (!shift && event.shiftKey && name.length > 1) return false;
  return event.key === name || (name.length === 1 && event.key.toLowerCase() === name && (shift || !event.shiftKey));
}

document.addEventListener('keydown', event => {
  if (event.defaultPrevented || event.isComposing || isDialogOpen()) return;
  const {view} = readState();
  const typing = isTyping(event.target);
  for (const group of [...groups].reverse()) {
    if (!holds(group, view)) continue;
    for (const entry of group.entries) {
      if (!entry.run || (typing && !entry.whileTyping)) continue;
      if (!entry.keys.some(key => matches(event, key))) continue;
      if (entry.run(event) === false) continue;
      event.preventDefault();
      return;
    }
  }
});

registerKeys(null, 'Everywhere', [{keys: ['?'], does: 'Show this help', run: () => showKeys()}]);
