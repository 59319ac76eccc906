// What the working lists look like alike: open or decided, how far one is, undo, the file to take away, a picture large.

import {download} from './api.js';
import {openDialog} from './dialog.js';
import {button, make, refill} from './dom.js';
import {picture} from './thumbs.js';
import {toast, toastError} from './toast.js';

/** What a list shows, by its name in the address and in words. */
export const STATES = {open: 'To decide', decided: 'Decided', all: 'All'};

/** The bar; on: {state(name), undo()}; file: {path, text, after(headers)}; `update` with what the server counts. */
export function drawReviewBar({filters = [], file, canReview, on}) {
  const states = Object.entries(STATES).map(([name, text]) => [name, text, button(text, {}, () => on.state(name))]);
  const track = make('div', {class: 'progress', role: 'progressbar', 'aria-label': 'Decided', 'aria-valuemin': 0});
  const words = make('span', {class: 'figures', role: 'status'});
  const undo =
    canReview && button('Undo', {icon: 'undo', title: 'Undo the last decision (U)', disabled: true}, on.undo);
  const take = button(file.text, {icon: 'download', class: 'primary'}, async () => {
    take.disabled = true;
    try {
      toast(file.after(await download(file.path)), {kind: 'good'});
    } catch (error) {
      toastError(error);
    } finally {
      take.disabled = false;
    }
  });
  const element = make(
    'div',
    {class: 'review-bar'},
    make(
      'div',
      {class: 'segments', role: 'group', 'aria-label': 'Which to show'},
      states.map(([, , node]) => node),
    ),
    filters,
    make('div', {class: 'review-done push'}, track, words),
    undo,
    take,
  );
  return {
    element,
    update({state, open, decided, canUndo}) {
      const total = open + decided;
      for (const [name, text, node] of states) {
        node.setAttribute('aria-pressed', String(name === state));
        refill(node, text, make('span', {class: 'tally'}, {open, decided, all: total}[name].toLocaleString('en')));
      }
      track.style.setProperty('--share', total ? decided / total : 0);
      track.setAttribute('aria-valuemax', total);
      track.setAttribute('aria-valuenow', decided);
      words.textContent = `${decided.toLocaleString('en')} of ${total.toLocaleString('en')} decided`;
      if (undo) undo.disabled = !canUndo;
    },
  };
}

/** Which of them the address asks for. */
export function readListState({extra}) {
  return Object.hasOwn(STATES, extra.state ?? '') ? extra.state : 'open';
}

/** Say that decisions cannot be made here; null where they can. */
export function drawReadOnly(canReview) {
  return canReview
    ? null
    : make(
        'p',
        {class: 'read-only', role: 'note'},
        make('b', {}, 'Looking only. '),
        'Decisions are taken on the machine that serves this page, or with its token: open the page there, or with ?token=… at the end of its address.',
      );
}

/** A picture large, in a dialog; `onKey(event)` gets the keys, `show` changes what is seen. */
export function openZoom({id, title, caption, onKey = () => {}, onClose = null}) {
  const stage = make('div', {class: 'zoom-stage'}),
    words = make('div', {class: 'zoom-words'});
  const dialog = openDialog({title, wide: true, body: [stage, words], onClose});
  const show = (now, nodes) => {
    const pressed = [...words.querySelectorAll('button')].indexOf(document.activeElement);
    refill(stage, picture(now));
    refill(words, nodes);
    words.querySelectorAll('button')[pressed]?.focus(); // or the keys would be heard no longer
  };
  dialog.element.addEventListener('keydown', event => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) onKey(event);
  });
  show(id, caption);
  return {show, close: dialog.close};
}
