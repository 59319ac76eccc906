// The grid of results: cards, moved over by arrow keys (one of them is the tab stop), with actions on each.

import {button, find, make, shownName, shownScore, shownText} from '../core/dom.js';
import {precisionMark, updatePrecisionMark, shortPrecision} from '../core/precision.js';
import {thumb} from '../core/thumbs.js';
import {readState} from '../core/url_state.js';

const SCORE = 'Score: how alike the model finds the two images (their cosine), 1 at most';
const SAME = 'So alike that it is a copy: cut, turned, recoloured or saved again';
const EAGER = 12;
const BEFORE = 6; // characters of a path before the word that it was found by
const STEPS = {ArrowLeft: -1, ArrowRight: 1};
const KEYS = {Enter: 'search', ' ': 'details', i: 'details', x: 'select', m: 'more', l: 'less'};

/**
 * A grid. `act(name, item)` is called with 'search', 'details', 'more', 'less', 'select' or 'duplicates'; `moved(item)`
 * when the keyboard goes to another card. Has `element`, `fill(items)`, `append(items)`, `insertAfter(id, items)`,
 * `remove(ids)`, `relabel(image)`, `mark({selected, open, label})` (the label that the query has), `focus(id)`, `item(id)`, `ids()`.
 */
export function makeGrid({act, moved}) {
  const element = make('ol', {class: 'grid', 'aria-label': 'Results'});
  const items = new Map();
  let marks = {selected: new Set(), open: null, label: null};
  let stop = null; // the id of the card that Tab reaches

  const cards = () => [...element.querySelectorAll(':scope > .card')];
  const cardOf = id => element.querySelector(`:scope > [data-id="${id}"]`);
  const itemAt = target => items.get(Number(target.closest('.card')?.dataset.id));

  function add(list, place) {
    const {text} = readState();
    const made = list.map((item, number) => {
      items.set(item.id, item);
      return drawCard(item, {eager: items.size <= EAGER && number < EAGER, text});
    });
    for (const card of made) setReach(card, '-1');
    place(...made);
    if (stop === null || !items.has(stop)) setStop(list[0]?.id ?? null);
    mark(marks);
  }

  function setStop(id) {
    setReach(cardOf(stop), '-1');
    stop = id;
    setReach(cardOf(stop), '0');
  }

  function mark(change) {
    marks = {...marks, ...change};
    for (const card of cards()) {
      const id = Number(card.dataset.id);
      const selected = marks.selected.has(id);
      card.classList.toggle('selected', selected);
      card.classList.toggle('open', marks.open === id);
      find(card, '.card-select').setAttribute('aria-pressed', String(selected));
      const item = items.get(id);
      card.querySelector('.chip')?.classList.toggle('same', marks.label !== null && item.label === marks.label);
      if (item.precision_at_score) {
        const isOther = Boolean(marks.label && item.label && item.label !== marks.label);
        updatePrecisionMark(find(card, '.precision'), item.precision_at_score, isOther);
        find(card, '.card-open').setAttribute('aria-label', describe(item, isOther));
      }
    }
  }

  function focus(id) {
    const card = cardOf(id);
    if (!card) return false;
    setStop(id);
    find(card, '.card-open').focus({preventScroll: true});
    card.scrollIntoView({block: 'nearest'});
    return true;
  }

  function go(event) {
    const list = cards();
    const columns = getComputedStyle(element).gridTemplateColumns.split(' ').length;
    const steps = {...STEPS, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity};
    const step = steps[event.key];
    if (step === undefined) return false;
    const here = list.indexOf(event.target.closest('.card'));
    const there = Math.max(0, Math.min(list.length - 1, here + step));
    if (Math.abs(step) > 1 && Number.isFinite(step) && here + step < 0) return false;
    const item = itemAt(list[there]);
    focus(item.id);
    moved(item);
    return true;
  }

  element.addEventListener('click', event => {
    const target = /** @type {Element} */ (event.target);
    const item = itemAt(target);
    const name = target.closest('[data-act]')?.dataset.act;
    if (!item || !name) return;
    setStop(item.id);
    act(name, item, event);
  });
  element.addEventListener('keydown', event => {
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || !target.matches('.card-open')) return;
    const name = KEYS[event.key];
    if (!go(event) && !name) return;
    event.preventDefault();
    if (name) act(name, itemAt(target), event);
  });
  element.addEventListener('focusin', event => {
    const item = itemAt(event.target);
    if (item) setStop(item.id);
  });

  return {
    element,
    mark,
    focus,
    fill(list) {
      items.clear();
      element.replaceChildren();
      stop = null;
      add(list, (...made) => element.append(...made));
    },
    append: list => add(list, (...made) => element.append(...made)),
    insertAfter: (id, list) => add(list, (...made) => cardOf(id)?.after(...made)),
    remove(ids) {
      for (const id of ids) {
        cardOf(id)?.remove();
        items.delete(id);
      }
    },
    relabel({id, label, given_label: given, decision}) {
      const item = items.get(id);
      const card = cardOf(id);
      if (!item || !card) return;
      Object.assign(item, {label, given_label: given});
      find(card, '.card-label').replaceWith(drawLabel(item, LEFT_OUT[decision?.decision ?? '']));
      mark({});
    },
    focusFirst: () => stop !== null && focus(stop),
    item: id => items.get(id),
    ids: () => [...items.keys()],
    card: cardOf,
  };
}

/** Whether Tab reaches a card's buttons: behind those of one card it leaves the grid. */
function setReach(card, tabindex) {
  for (const one of card?.querySelectorAll('button') ?? []) one.setAttribute('tabindex', tabindex);
}

/** Grey cards, while results are on their way. */
export function drawSkeletons(number) {
  return make('ol', {class: 'grid', 'aria-hidden': 'true'}, [
    Array.from({length: number}, () =>
      make('li.card', make('span.skeleton.picture'), make('span.skeleton.line'), make('span.skeleton.line.short')),
    ),
  ]);
}

/** @param {Item} item */
function drawCard(item, {eager, text}) {
  const name = nameOf(item);
  return make('li', {class: `card${item.duplicateOf ? ' is-duplicate' : ''}`, dataset: {id: item.id}}, [
    make(
      'button',
      {class: 'card-open', 'aria-label': describe(item), dataset: {act: 'details'}},
      make('span.card-picture', [
        thumb(item.id, {eager}),
        item.rank && make('span.rank', item.rank),
        item.duplicateOf && make('span.rank', `group of ${item.duplicateOf}`),
      ]),
      make('span.card-text', [
        item.precision_at_score && make('span.card-line', precisionMark(item.precision_at_score)),
        item.is_copy && make('span.card-line', make('span', {class: 'precision', title: SAME}, 'copy')),
        make('span.card-line', [
          drawLabel(item),
          item.score !== undefined && make('span', {class: 'score figures', title: SCORE}, shownScore(item.score, 3)),
        ]),
        item.found_by && make('span.card-line', make('span.small.soft', foundBy(item))),
        drawPath(item.path ?? name, [...(item.words ?? []), text].join(' ')),
      ]),
    ),
    make('span.card-actions', [
      action('Search with this', 'search', 'search'),
      action('More like this', 'plus', 'more'),
      action('Less like this', 'minus', 'less'),
    ]),
    button('Select', {
      icon: 'check',
      iconOnly: true,
      class: 'small card-select',
      'aria-pressed': 'false',
      title: 'Select (x)',
      dataset: {act: 'select'},
    }),
    item.duplicates_count
      && button(`+${item.duplicates_count.toLocaleString('en')}`, {
        class: 'small card-duplicates',
        'aria-expanded': 'false',
        'aria-label': `Show ${item.duplicates_count} collapsed images`,
        title: 'Images of the same group, collapsed into this one',
        dataset: {act: 'duplicates'},
      }),
  ]);
}

/** What found a result of a search by words. @param {Item} item */
function foundBy({found_by: by, words = []}) {
  if (by === 'looks') return 'looks like it';
  const written = words.map(word => `\u201c${word}\u201d`).join(', ');
  return by === 'words' ? written : `${written} \u00b7 looks like it`;
}

const LEFT_OUT = {drop: 'dropped', set_aside: 'set aside'};

/** The label, and what was given where that is another one. @param {Item} item */
function drawLabel(item, leftOut = '') {
  const label = item.label && shownText(item.label);
  const given = item.given_label !== undefined && `was: ${shownText(item.given_label ?? 'no label')}`;
  return make('span.card-label', [
    label && make('span', {class: 'chip', title: label}, make('span', shownName(item.label))),
    given && make('span', {class: 'small soft clip', title: given}, given),
    leftOut && make('span.chip.warn', leftOut),
  ]);
}

function action(text, drawing, name) {
  const key = Object.keys(KEYS).find(entry => KEYS[entry] === name);
  return button(text, {icon: drawing, iconOnly: true, class: 'small', title: `${text} (${key})`, dataset: {act: name}});
}

/** @param {Item} item */
const nameOf = item => (item.path ? shownText(item.path) : `image ${item.id}`);

/** @param {Item} item */
function describe(item, isOther = false) {
  const words = [
    item.rank ? `Result ${item.rank}` : 'Image',
    item.label && shownText(item.label),
    item.precision_at_score && shortPrecision(item.precision_at_score, isOther),
    item.is_copy && 'copy',
    item.found_by && foundBy(item),
    item.score !== undefined && `score ${shownScore(item.score, 3)}`,
    nameOf(item),
  ];
  return `${words.filter(Boolean).join(', ')}. Details`;
}

/** The path in one line; a word of `text` that it holds is marked and stands where it can be seen. */
function drawPath(path, text) {
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
