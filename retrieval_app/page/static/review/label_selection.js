// Several images of the label list that are selected, and the bar that decides them at once.

import {button, count, make, refill} from '../core/dom.js';

/**
 * The selection and the bar that acts on it: `accept(items)`, `decide(items, decision)`.
 *
 * @param {import('./review_list.js').ReviewList<LabelIssueEntry, LabelDecision>} list
 */
export function makeSelection(list, {accept, decide, KEEP, SET_ASIDE, DROP}) {
  /** @type {Set<LabelIssueEntry>} */
  const chosen = new Set();
  const element = make('div', {class: 'review-several', role: 'group', 'aria-label': 'Selected images', hidden: true});
  /** @type {LabelIssueEntry | null} */
  let anchor = null;

  /** @param {LabelIssueEntry} item @param {boolean} checked @param {MouseEvent | null} event */
  function toggle(item, checked, event = null) {
    const range =
      event?.shiftKey && anchor && list.items.includes(anchor)
        ? [list.items.indexOf(anchor), list.items.indexOf(item)].sort((a, b) => a - b)
        : null;
    for (const one of range ? list.items.slice(range[0], range[1] + 1) : [item]) {
      if (checked) chosen.add(one);
      else chosen.delete(one);
      list.cards.get(one.id).setSelected(checked);
    }
    anchor = item;
    draw();
  }
  function clear() {
    if (!chosen.size) return false;
    for (const item of chosen) list.cards.get(item.id)?.setSelected(false);
    chosen.clear();
    draw();
    return true;
  }
  function draw() {
    const items = [...chosen];
    const all = decision => {
      decide(items, decision);
      clear();
    };
    element.hidden = !items.length;
    refill(element, [
      make('b', {role: 'status'}, `${count(items.length, 'image')} selected`),
      button('Accept verdicts', {class: 'primary'}, () => accept(items)),
      button('Keep labels', {}, () => all(KEEP)),
      items.every(item => item.decision?.decision === 'set_aside')
        ? button('Bring back', {}, () => all(null))
        : button('Set aside', {}, () => all(SET_ASIDE)),
      button('Drop', {}, () => all(DROP)),
      button('Select none', {icon: 'close', iconOnly: true, class: 'quiet'}, clear),
    ]);
  }
  return {element, toggle, clear, has: item => chosen.has(item)};
}
