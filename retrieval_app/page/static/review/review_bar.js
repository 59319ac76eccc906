// Parts that the working lists share: the filter by state, progress, undo, the download and an enlarged image.

import {download} from '../core/api.js';
import {openDialog} from '../core/dialog.js';
import {button, make, refill, refillKeepingFocus} from '../core/dom.js';
import {keep, readKept} from '../core/kept.js';
import {notice} from '../core/loading.js';
import {picture} from '../core/thumbs.js';
import {toast, toastError} from '../core/toast.js';

const PATHS = 'paths';

/** States of a list: the name in the URL, and the text that is shown. */
const STATES = {open: 'To decide', decided: 'Decided', set_aside: 'Set aside', all: 'All'};
export const LIST_STATES = /** @type {const} */ (['open', 'decided', 'all']);
export const LABEL_STATES = /** @type {const} */ (['open', 'decided', 'set_aside', 'all']);
/** States of a label list, with the images that were drawn for a certificate. */
export const LABEL_LISTS = /** @type {const} */ ([...LABEL_STATES, 'sample']);

/** State of an item. @param {{decision: {decision: string} | null}} item */
export function stateOf({decision}) {
  if (!decision) return 'open';
  return decision.decision === 'set_aside' ? 'set_aside' : 'decided';
}

/**
 * Bar of a list with its states, undo and download. on: {state(name), undo()}; file: {path, text, after(headers, paths)}, whose paths
 * are absolute or relative, as users choose who may see absolute ones; `update` takes the counts of the server.
 *
 * @param {{
 *   filters?: Child[], canReview: boolean, states?: readonly string[], on: {state: (name: string) => void, undo: () => void},
 *   file?: {path: string, text: string, after: (headers: Headers, paths?: string) => string},
 * }} given
 */
export function drawReviewBar({filters = [], file, canReview, states: names = LIST_STATES, on}) {
  const states = names.map(name => ({name, text: STATES[name], node: button(STATES[name], {}, () => on.state(name))}));
  const track = make('div', {class: 'progress', role: 'progressbar', 'aria-label': 'Decided', 'aria-valuemin': 0});
  const words = make('span', {class: 'figures', role: 'status'});
  const undo =
    canReview && button('Undo', {icon: 'undo', title: 'Undo the last decision (U)', disabled: true}, on.undo);
  const element = make('div.review-bar', [
    make('div', {class: 'segments', role: 'group', 'aria-label': 'Which to show'}, [states.map(({node}) => node)]),
    filters,
    make('div.review-end', make('div.review-done', track, words), undo, file && drawDownload(file, canReview)),
  ]);
  return {
    element,
    update({state, open, decided, setAside, canUndo}) {
      const total = open + decided;
      for (const {name, text, node} of states) {
        node.setAttribute('aria-pressed', String(name === state));
        refill(
          node,
          text,
          make('span.tally', {open, decided, set_aside: setAside, all: total + setAside}[name].toLocaleString('en')),
        );
      }
      track.style.setProperty('--share', String(total ? decided / total : 0));
      track.setAttribute('aria-valuemax', total);
      track.setAttribute('aria-valuenow', decided);
      words.textContent = `${decided.toLocaleString('en')} of ${total.toLocaleString('en')} decided`;
      if (undo) undo.disabled = !canUndo;
    },
  };
}

/** Button that saves the file of a list. */
function drawDownload(file, canReview) {
  const paths = canReview ? drawPathsChoice() : null; // users who may decide also see folders
  const take = button(file.text, {icon: 'download', class: 'primary'}, async () => {
    take.disabled = true;
    try {
      toast(file.after(await download(file.path, null, {paths: paths?.value}), paths?.value), {kind: 'good'});
    } catch (error) {
      toastError(error);
    } finally {
      take.disabled = false;
    }
  });
  return make('div.take', take, paths);
}

/** How the file names images; it is kept from one download to the next. */
function drawPathsChoice() {
  const choice = make(
    'select',
    {
      class: 'select',
      'aria-label': 'Paths in the file',
      title: 'Absolute paths hold on this machine; relative ones in the folder of the images, wherever that is moved',
      onchange: () => keep(PATHS, choice.value),
    },
    ['absolute', 'relative'].map(name => make('option', {value: name, selected: name === readKept(PATHS)}, name)),
  );
  return choice;
}

/**
 * Which of them the address asks for.
 *
 * @template {string} Name
 * @param {State} state
 * @param {readonly Name[]} names
 */
export function readListState({extra}, names) {
  return names.find(name => name === extra.state) ?? names[0];
}

/** Notice in place of an empty list. */
export function drawNothingIn({filter, tally}, {icon, all, title, text, more = /** @type {Child} */ (null)}) {
  if (filter.state === 'decided') {
    const words = 'What you decide is listed here, and can be changed.';
    return notice({icon, title: 'Nothing decided yet', text: words}, more);
  }
  if (filter.state === 'set_aside') {
    const words = 'Images whose label is uncertain are listed here, set aside one by one, in a class or in bulk.';
    return notice({icon, title: 'Nothing is set aside', text: words}, more);
  }
  return notice({icon: 'check', ...(tally.decided ? {title: 'All decided', text: all} : {title, text})});
}

/** Button of a decision, with its key; a second press undoes it. */
export const decisionButton = (key, words, {pressed, kind = '', title = words, ...props}) =>
  make(
    'button',
    {
      class: `decision ${kind}`,
      'aria-pressed': String(pressed),
      title: pressed ? 'Undo this decision' : title,
      ...props,
    },
    [make('span.two-lines', words), make('kbd', {'aria-hidden': 'true'}, key)],
  );

/** Notice that this page is read-only; null where decisions can be made. */
export function drawReadOnly(canReview) {
  return canReview
    ? null
    : make('p', {class: 'read-only', role: 'note'}, [
        make('b', 'Read-only. '),
        document.querySelector('.sign-out')
          ? 'Your token may search here; one that may review decides.'
          : 'Decisions are taken on the machine that serves this page, or where a token is asked for.',
      ]);
}

/**
 * Dialog with a large image; `onKey(event)` gets the keys, `show` changes the image.
 *
 * @param {{
 *   id: number, title: string, caption: Child, onKey?: (event: KeyboardEvent) => void, onClose?: (() => void) | null,
 * }} given
 */
export function openZoom({id, title, caption, onKey, onClose}) {
  const stage = make('div.zoom-stage');
  const words = make('div.zoom-words');
  const dialog = openDialog({title, wide: true, body: [stage, words], onClose});
  const show = (now, nodes) => {
    refill(stage, picture(now));
    refillKeepingFocus(words, nodes); // or key presses would no longer arrive
  };
  dialog.element.addEventListener('keydown', event => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) onKey?.(event);
  });
  show(id, caption);
  return {show, close: dialog.close};
}
