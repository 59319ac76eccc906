// Replacement of the items of a working list: the current item, the focus and the scroll position stay.

import {stateOf} from './review_bar.js';
import {announce} from '../core/toast.js';

/**
 * Show the items that the server lists now. Items decided here stay above them.
 *
 * @param {import('./review_list.js').ReviewList<any, any>} list
 * @param {any[]} items
 * @param {{keyOf: (item: any) => any, drawItem: (item: any) => any, place: HTMLElement}} given
 */
export function replaceItems(list, items, {keyOf, drawItem, place}) {
  const {state} = list.filter;
  const nodeOf = item => list.cards.get(keyOf(item)).node;
  const known = new Map(list.items.map(item => [keyOf(item), item]));
  const listed = new Set(items.map(keyOf));
  const isDecidedHere = item => state !== 'all' && stateOf(item) !== state;
  const staying = list.items.filter(item => listed.has(keyOf(item)) || isDecidedHere(item));
  const from = list.items.indexOf(list.current);
  const anchor = staying.find(item => list.items.indexOf(item) >= from) ?? staying.at(-1);
  const top = anchor && nodeOf(anchor).getBoundingClientRect().top;
  const focus = holdFocus(list, nodeOf);

  list.items = staying.filter(item => !listed.has(keyOf(item)));
  for (const item of items) {
    const old = known.get(keyOf(item));
    if (!old) list.cards.set(keyOf(item), drawItem(item));
    else if (isNew(old, item) && !list.cards.get(keyOf(old)).isTouched?.()) {
      list.cards.set(keyOf(item), drawItem(Object.assign(old, item)));
    }
    list.items.push(old ?? item);
  }
  for (const [key, item] of known) if (!list.items.includes(item)) list.cards.delete(key);
  place.replaceChildren(...list.items.map(nodeOf));

  list.current = null;
  if (anchor) list.setCurrent(anchor);
  focus(anchor);
  if (anchor && top > -innerHeight && top < innerHeight) {
    scrollBy(0, nodeOf(anchor).getBoundingClientRect().top - top);
  }
  announce('The list is up to date');
}

const isNew = (old, item) => JSON.stringify(old) !== JSON.stringify(item);

/** Function that restores the focus, or gives it to the other item where the focused one is gone. */
function holdFocus(list, nodeOf) {
  const item = list.items.find(one => nodeOf(one).contains(document.activeElement));
  const controls = () => [...nodeOf(item).querySelectorAll('button, a, input')];
  const at = item ? controls().indexOf(document.activeElement) : -1;
  return other => {
    if (!item) return;
    const isHere = list.items.includes(item);
    const node = isHere ? (controls()[at] ?? nodeOf(item)) : other && nodeOf(other);
    node?.focus({preventScroll: true});
  };
}
