// One group of near-duplicates: images to mark as kept, and the decision: duplicates or different images.

import {button, count, fileSize, make, percent, refill, refillKeepingFocus, shownText} from '../core/dom.js';
import {decisionButton, openZoom} from './review_bar.js';
import {select} from '../core/selection.js';
import {zoomer} from '../core/thumbs.js';
import {drawLead} from './label_file.js';

/** Text for a decision; null: undone. @param {GroupDecision | null} decision */
export function wordsFor(decision) {
  if (!decision) return 'Decision undone';
  return decision.decision === 'different'
    ? 'Different images: all kept'
    : `Duplicates: ${count(decision.keep.length, 'image')} kept`;
}

/** Similarity to the first image, with which all others are compared. @param {GroupImage} image */
function likenessOf(image, place) {
  if (place === 0) return 'the first';
  if (image.same_bytes) return 'same file';
  return image.similarity === null ? 'looks alike' : `${percent(image.similarity)} alike`;
}

/** @param {GroupImage} image */
const labelOf = image => (image.label === null ? 'no label' : shownText(image.label));

/**
 * The group as a card; on: {focus(group), zoom(group, place), decide(group, 'duplicates' | 'different' | 'open')}.
 *
 * @param {GroupEntry} group
 */
export function drawGroup(group, {canReview, on}) {
  const {images} = group;
  const decide = make('div', {class: 'group-decide', role: 'group', 'aria-label': 'Decision'});
  const boxes = images.map(
    (_, place) =>
      canReview && make('input', {type: 'checkbox', onchange: event => toggle(place, event.target.checked)}),
  );
  const figures = images.map((image, place) =>
    drawImage(image, place, {box: boxes[place], zoom: () => on.zoom(group, place)}),
  );
  const sameBytes = images.slice(1).every(image => image.same_bytes);
  const names = images
    .slice(0, 4)
    .map(image => shownText(image.path))
    .join(', ');
  const node = make(
    'article',
    {
      class: `duplicate-group ${images.length > 3 ? 'wide' : ''}`,
      tabindex: 0,
      onfocusin: () => on.focus(group),
      'aria-label': `Group of ${images.length}${group.labels_differ ? ', labels differ' : ''}: ${names}`,
    },
    make('div.group-head', [
      make('h3', count(images.length, 'image')),
      sameBytes && make('span.chip', 'same file'),
      group.labels_differ
        && make('span', {class: 'chip warn', title: 'If these are duplicates, at least one of the labels is wrong'}, [
          'labels differ',
        ]),
      group.burst
        && make(
          'span.chip',
          {title: 'Not copies of one picture, by perceptual hashes: other shots of the scene'},
          'burst',
        ),
      canReview
        && button('Select', {icon: 'check', class: 'small quiet push', title: 'For a label or tags (S)'}, () =>
          select(images.map(image => image.id)),
        ),
    ]),
    make('ul.group-images', figures),
    decide,
  );
  /** @type {Set<number>} */
  let keep = new Set();
  let isTouched = false; // the user chose the images to keep: no proposal replaces that

  function toggle(place, wanted = !keep.has(images[place]?.id)) {
    if (!images[place]) return;
    if (wanted) keep.add(images[place].id);
    else keep.delete(images[place].id);
    isTouched = true;
    draw();
  }
  function draw() {
    const {decision} = group;
    node.classList.toggle('is-different', decision?.decision === 'different');
    node.classList.toggle('is-duplicates', decision?.decision === 'duplicates');
    images.forEach((image, place) => {
      if (boxes[place]) boxes[place].checked = keep.has(image.id);
      figures[place].classList.toggle('kept', keep.has(image.id));
    });
    if (canReview) drawDecide();
    else refill(decide, decision && make('span.chip.on', wordsFor(decision)));
  }
  function drawDecide() {
    const {decision} = group;
    const isDuplicates = decision?.decision === 'duplicates';
    const asDecided = isDuplicates && keep.size === decision.keep.length && decision.keep.every(id => keep.has(id));
    const isDifferent = decision?.decision === 'different';
    const run = (pressed, name) => () => on.decide(group, pressed ? 'open' : name);
    const duplicates =
      keep.size === 0
        ? 'Duplicates: choose what to keep'
        : keep.size === images.length
          ? 'Duplicates, keep all'
          : `Duplicates: keep ${keep.size}, drop ${images.length - keep.size}`;
    const same = {pressed: asDecided, kind: 'proposed', disabled: !keep.size, onclick: run(asDecided, 'duplicates')};
    refillKeepingFocus(decide, [
      decisionButton('A', duplicates, same),
      decisionButton('D', 'Different images, keep all', {pressed: isDifferent, onclick: run(isDifferent, 'different')}),
    ]);
  }
  function redraw() {
    const {decision, best} = group;
    if (decision?.decision === 'duplicates') keep = new Set(decision.keep);
    else if (!isTouched) keep = new Set(best === null ? [] : [best]);
    isTouched ||= decision !== null;
    draw();
  }
  redraw();
  return {
    node,
    redraw,
    toggle,
    isTouched: () => isTouched,
    kept: () => images.map(image => image.id).filter(id => keep.has(id)),
  };
}

/** @param {GroupImage} image */
function drawImage(image, place, {box, zoom}) {
  const path = shownText(image.path);
  return make('li.duplicate-image', [
    zoomer(image.id, path, zoom),
    make('div.duplicate-words', [
      make(
        'span.first',
        make('b', {class: 'two-lines', title: labelOf(image)}, labelOf(image)),
        make('span.soft.figures', likenessOf(image, place)),
      ),
      make('span', {class: 'clip small soft', title: path}, path),
      make('span.small.soft', fileSize(image.size_bytes), !image.indexed && ' · not searched'),
    ]),
    box && make('label.keep-toggle', box, 'Keep', place < 9 && make('kbd', {'aria-hidden': 'true'}, String(place + 1))),
  ]);
}

/** The images of a group, large, one after the other in the same place, to compare them. */
export function openComparison(group, {from, onClose}) {
  const {images} = group;
  let at = from;
  const caption = () => {
    const image = images[at];
    const place = `${at + 1} of ${images.length}`;
    return [
      make('p', make('b', place), ` · ${likenessOf(image, at)} · ${labelOf(image)} · ${fileSize(image.size_bytes)}`),
      make('p.small.soft', shownText(image.path)),
      make('div.row', [
        button('← Previous', {class: 'small'}, () => go(-1)),
        button('Next →', {class: 'small'}, () => go(1)),
        image.indexed && drawLead(image.id, () => zoom.close(), {class: 'push'}),
      ]),
    ];
  };
  const zoom = openZoom({
    id: images[at].id,
    title: 'Compare',
    caption: caption(),
    onClose,
    onKey: event => {
      const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (event.key.toLowerCase() === 'z') zoom.close();
      if (!by) return;
      event.preventDefault();
      go(by);
    },
  });
  function go(by) {
    at = (at + by + images.length) % images.length;
    zoom.show(images[at].id, caption());
  }
}
