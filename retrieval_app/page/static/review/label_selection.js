// Several images of the label list, decided at once: those above a threshold, or those selected.

import {post} from '../core/api.js';
import {button, count, debounce, make, refill} from '../core/dom.js';
import {keep, readKept} from '../core/kept.js';
import {toast, toastError} from '../core/toast.js';
import {confirmAccept, describeAccepted, wholePercent} from './label_dialogs.js';

const THRESHOLD = 'accept-threshold'; // in percent
export const PROPOSAL = 'unlabelled'; // the kind of labels proposed for images without one
const [LEAST, MOST] = [50, 99];
const CHANGED = 'The estimate changed meanwhile; look again.';

/**
 * Acceptance of the verdicts on all label issues above a threshold, shown or not; `update` counts them anew.
 *
 * @param {import('./review_list.js').ReviewList<LabelIssueEntry, LabelDecision>} list
 */
export function makeAccept(list, readChoice, isBuiltin) {
  const within = value => (Number(value) ? Math.min(MOST, Math.max(LEAST, Math.round(Number(value)))) : '');
  const field = make('input', {
    class: 'input threshold',
    type: 'number',
    min: LEAST,
    max: MOST,
    step: 5,
    value: within(readKept(THRESHOLD)),
    'aria-label': 'Least probability of a label error, in percent',
    title: 'Empty: the lowest from 60 % on, from which on seven in ten labels are estimated to be wrong',
    oninput: () => update(),
    onchange: () => {
      field.value = String(within(field.value));
      keep(THRESHOLD, field.value);
    },
  });
  const words = make('span', {role: 'status'});
  const about = make('span', '% probability of a label error:');
  const accept = button('Accept…', {class: 'small', disabled: true}, () => confirm());
  /** @type {{body: any, found: Accepted}} */
  let preview;
  let turn = 0;

  function ask() {
    /** @type {any} */
    const chosen = Object.fromEntries(Object.entries(readChoice()).filter(([, value]) => value));
    return {threshold: Number(within(field.value)) / 100 || null, ...chosen};
  }
  function confirm(isChanged = false) {
    const {body, found} = preview; // as they are now: a newer one may come while the dialog is open
    const what = {proposals: body.kind === PROPOSAL};
    const done = describeAccepted(found, {...what, isDone: true});
    const run = async () => {
      if (await list.accept('labels/accept', {...body, digest: found.digest}, done)) return;
      await read();
      if (accept.disabled) toast(CHANGED);
      else confirm(true);
    };
    confirmAccept(found, run, {...what, isBuiltin, note: isChanged ? CHANGED : null});
  }
  async function read() {
    const now = (turn += 1);
    try {
      const body = ask();
      const found = await post('labels/accept', body);
      if (now !== turn) return;
      preview = {body, found};
      field.placeholder = String(wholePercent(found.threshold));
      words.textContent = describeAccepted(found, {proposals: body.kind === PROPOSAL});
      about.textContent = body.kind === PROPOSAL ? '% probability:' : '% probability of a label error:';
      accept.disabled = !(found.changed + found.dropped);
    } catch (error) {
      toastError(error);
    }
  }
  const update = debounce(read, 200);
  return {element: make('div.row.accept-line', 'At least', field, about, words, accept), update};
}

/**
 * The selection and the bar that acts on it: `accept(items)`, `decide(items, decision)`.
 *
 * @param {import('./review_list.js').ReviewList<LabelIssueEntry, LabelDecision>} list
 */
export function makeSelection(list, {accept, decide, KEEP, DROP}) {
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
      button('Drop', {}, () => all(DROP)),
      button('Select none', {icon: 'close', iconOnly: true, class: 'quiet'}, clear),
    ]);
  }
  return {element, toggle, clear, has: item => chosen.has(item)};
}
