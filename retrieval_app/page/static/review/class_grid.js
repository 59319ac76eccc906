// The grid of the images of a class: thumbnails to mark, arrows that go through them, an image large.

import {make, percent, shownText} from '../core/dom.js';
import {thumb} from '../core/thumbs.js';
import {openZoom} from './review_bar.js';

const LIKELY_ERROR = 0.5; // probability of a label error from which on it is shown

/** @typedef {{id: number, path: string, p_error?: number | null, decision?: LabelDecision | null}} Shown */

/** The images as items of a list; `aria-pressed` says whether one is marked. @param {Shown[]} images */
export const drawImages = (images, {canMark}) => images.map(image => make('li', drawImage(image, canMark)));

/** @param {Shown} image @param {boolean} canMark */
function drawImage({id, path, p_error: error, decision}, canMark) {
  const name = shownText(path);
  const chance = error && error >= LIKELY_ERROR ? percent(error) : null;
  return make(
    'button',
    {
      class: 'class-image',
      dataset: {id},
      title: chance ? `${name}\n${chance} probability that the label is wrong` : name,
      'aria-label': chance ? `${name}, wrong with a probability of ${chance}` : name,
      'aria-pressed': canMark ? 'false' : null,
    },
    thumb(id),
    chance && make('span.class-chance', chance),
    decision?.decision === 'drop' && make('span.class-chance', 'dropped'),
  );
}

/** The arrow keys, Home and End within a grid of images. @param {KeyboardEvent} event */
export function moveByArrows(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const grid = /** @type {HTMLElement} */ (event.currentTarget);
  const columns = getComputedStyle(grid).gridTemplateColumns.split(' ').length;
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity};
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const nodes = [...grid.querySelectorAll('.class-image')];
  const here = nodes.findIndex(node => node === document.activeElement);
  const node = nodes[Math.max(0, Math.min(nodes.length - 1, here + step))];
  node?.focus({preventScroll: true});
  node?.scrollIntoView({block: 'nearest'});
}

/**
 * One of the images large, where arrows go on to the others; `toggle(id)` marks, `onClose(id)` gets the last one.
 *
 * @param {Shown[]} images
 * @param {{
 *   id: number, label: string, isMarked: (id: number) => boolean, toggle: ((id: number) => void) | null,
 *   onClose: (id: number) => void,
 * }} given
 */
export function enlargeOne(images, {id, label, isMarked, toggle, onClose}) {
  let at = images.findIndex(image => image.id === id);
  const words = () =>
    make('p', [
      make('b', isMarked(images[at].id) ? 'Marked' : shownText(label)),
      ` · ${shownText(images[at].path)} `,
      make('span.soft', `· ← and → go on${toggle ? ', X marks' : ''}`),
    ]);
  const zoom = openZoom({
    id,
    title: 'Picture',
    caption: words(),
    onClose: () => onClose(images[at].id),
    onKey: event => {
      const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      const name = event.key.toLowerCase();
      if (name === 'z') return zoom.close();
      if (name === 'x' && toggle) toggle(images[at].id);
      else if (by) at = Math.max(0, Math.min(images.length - 1, at + by));
      else return;
      event.preventDefault();
      zoom.show(images[at].id, words());
    },
  });
}
