// Facets with counts: labels, folders, metadata; a click on a value is a condition.

import {button, count, make, refill, shownName, shownText} from '../core/dom.js';
import {get, isAborted} from '../core/api.js';
import {kindOf, whereOf} from './results.js';
import {readState, writeState} from '../core/url_state.js';

const SHOWN_AT_FIRST = 8;
const OPEN_AT_FIRST = 3;
const TYPING_MILLISECONDS = 200;
const MOST_STEPS = 60; // of a histogram
const MOST_NAMED = 200; // more of them make too long a condition
const TITLES = {label: 'Label', tag: 'Tag', folder: 'Folder', source: 'Source', taken: 'Taken'};

/**
 * The facets. `changed()` tells that names of conditions became known. Has `element`, `nameOf` and `update(state)`, false
 * if there was no answer.
 */
export function makeFacets({changed}) {
  const element = make('section', {class: 'facets', 'aria-label': 'Narrow down'});
  const known = new Map(); // expression -> {facet, value}
  const wide = new Set(); // names of facets that show all their values
  const folded = new Map(); // name of a facet -> whether it is open
  const wanted = new Map(); // name of a facet -> a part of the values that are looked for
  let waiting = 0;
  let drawn = null;
  let running = null;

  /** The facet's values that a condition stands for: `label = 'a' OR label = 'b'`; null if it belongs to no facet. */
  function readCondition(filter) {
    const parts = known.has(filter) ? [filter] : filter.split(' OR ');
    const found = parts.map(part => known.get(part));
    if (found.some(entry => !entry || entry.facet !== found[0].facet)) return null;
    return {facet: found[0].facet, wheres: parts, values: found.map(entry => entry.value)};
  }

  function nameOf(filter) {
    const read = readCondition(filter);
    return read ? `${titleOf(read.facet)}: ${read.values.map(textOf).join(' or ')}` : filter;
  }

  function toggle({facet, where}) {
    const state = readState(); // not the one that the boxes were drawn for, which the counts of the next may not have reached
    const own = state.filters.find(filter => readCondition(filter)?.facet === facet);
    if (!own) return writeState({filters: [...state.filters, where]});
    const wheres = readCondition(own)?.wheres ?? [];
    const next = wheres.includes(where) ? wheres.filter(entry => entry !== where) : [...wheres, where];
    return writeState({
      filters: state.filters.flatMap(filter => (filter !== own ? [filter] : next.length ? [next.join(' OR ')] : [])),
    });
  }

  async function load(state) {
    running?.abort();
    running = new AbortController();
    const {signal} = running;
    const isNamed = kindOf(state) === 'named' && state.ids.length <= MOST_NAMED;
    const named = isNamed ? [`id IN (${state.ids.join(', ')})`] : [];
    const ask = (filters, looked = {}) =>
      get('facets', {where: whereOf([...named, ...filters]), text: state.text, ...looked}, {signal});
    if (known.size === 0 && state.filters.length > 0) learn(await get('facets', {}, {signal}));
    const answer = learn(await ask(state.filters));
    // Within a facet values add up, so its counts are those without its own condition.
    return Promise.all(
      answer.facets.map(async facet => {
        const others = state.filters.filter(filter => readCondition(filter)?.facet !== facet.name);
        const find = wanted.get(facet.name);
        if (others.length === state.filters.length && !find) return facet;
        const found = learn(await ask(others, find && {facet: facet.name, find})).facets;
        return found.find(entry => entry.name === facet.name) ?? (find ? {...facet, values: [], more: 0} : facet);
      }),
    );
  }

  function learn(answer) {
    for (const facet of answer.facets) {
      for (const {value, where} of facet.values) known.set(where, {facet: facet.name, value});
    }
    return answer;
  }

  function draw(state, facets) {
    const labels = facets.find(facet => facet.name === 'label');
    const sameAsLabels = facet =>
      facet.name === 'folder'
      && labels
      && facet.values.length === labels.values.length
      && facet.values.every(own => labels.values.some(one => one.value === own.value && one.count === own.count));
    const focused = element.querySelector(':focus')?.dataset.where;
    refill(element, [
      facets
        .filter(facet => facet.values.length > 0 || wanted.has(facet.name))
        .map((facet, number) => drawFacet(state, {facet, open: number < OPEN_AT_FIRST && !sameAsLabels(facet)})),
    ]);
    const name = focused && `[data-where="${CSS.escape(focused)}"]`;
    const again = name ? /** @type {HTMLInputElement?} */ (element.querySelector(name)) : null;
    again?.focus({preventScroll: true});
    if (again?.type === 'search') again.setSelectionRange(again.value.length, again.value.length);
  }

  /** @param {State} state @param {{facet: FacetEntry, open: boolean}} given */
  function drawFacet(state, {facet, open}) {
    const chosen = state.filters.map(readCondition).find(read => read?.facet === facet.name)?.wheres ?? [];
    const all = wide.has(facet.name) || wanted.has(facet.name);
    const shown = facet.values.filter(({where}, place) => all || place < SHOWN_AT_FIRST || chosen.includes(where));
    const most = Math.max(...facet.values.map(value => value.count));
    const hidden = facet.values.length - shown.length;
    const isTime = facet.name === 'taken';
    if (!folded.has(facet.name)) folded.set(facet.name, open || chosen.length > 0);
    const summary = make('summary', titleOf(facet.name));
    const part = wanted.get(facet.name) ?? '';
    const isLong = !isTime && (part !== '' || facet.more > 0 || facet.values.length > SHOWN_AT_FIRST);
    const details = make('details', {class: 'facet', open: folded.get(facet.name)}, [
      summary,
      isLong && drawFinder(facet, part),
      !shown.length && make('p.small.soft', 'No such value'),
      isTime && drawTimes(facet, {most, chosen}),
      !isTime
        && make('ul', [
          shown.map(value => make('li', drawValue({facet, value, most, on: chosen.includes(value.where)}))),
        ]),
      (hidden > 0 || all)
        && !isTime
        && !wanted.has(facet.name)
        && facet.values.length > SHOWN_AT_FIRST
        && button(
          all ? 'Show fewer' : `Show ${hidden} more`,
          {class: 'quiet small', dataset: {where: `more-${facet.name}`}},
          () => {
            if (all) wide.delete(facet.name);
            else wide.add(facet.name);
            draw(state, drawn);
          },
        ),
      facet.more > 0
        && !isTime
        && (all || hidden === 0)
        && make('p.small.soft', `${facet.more.toLocaleString('en')} more values: find them by a part of their name`),
    ]);
    details.addEventListener('toggle', () => folded.set(facet.name, details.open));
    summary.addEventListener('click', () =>
      requestAnimationFrame(() => details.open && details.scrollIntoView({block: 'nearest'})),
    );
    return details;
  }

  /** A field to find values with: among those that are not shown too, which the server looks through. */
  function drawFinder(facet, part) {
    const total = (facet.values.length + facet.more).toLocaleString('en');
    return make('input', {
      class: 'input small',
      type: 'search',
      value: part,
      placeholder: part === '' ? `Find among ${total}` : '',
      'aria-label': `Find a value of ${titleOf(facet.name)}`,
      dataset: {where: `find-${facet.name}`},
      oninput: event => {
        const text = event.target.value.trim();
        if (text) wanted.set(facet.name, text);
        else wanted.delete(facet.name);
        clearTimeout(waiting);
        waiting = setTimeout(() => update(readState()), TYPING_MILLISECONDS);
      },
    });
  }

  /** A histogram over years or months, whose bars are conditions. @param {FacetEntry} facet */
  function drawTimes({name, values}, {most, chosen}) {
    const ordered = [...values].reverse();
    const first = stepOf(ordered[0].value);
    const hasGaps = stepOf(values[0].value) - first < MOST_STEPS; // else a wrong clock leaves no room for bars
    const bars = ordered.map(({value, count: images, where}) =>
      button(`${value}: ${count(images, 'image')}`, {
        iconOnly: true,
        class: 'time',
        'aria-pressed': String(chosen.includes(where)),
        style: {'--share': images / most, 'grid-column': hasGaps ? stepOf(value) - first + 1 : 'auto'},
        dataset: {where},
        onclick: () => toggle({facet: name, where}),
      }),
    );
    const ends = ordered.length > 1 ? [ordered[0], values[0]] : ordered;
    return [
      make('div', {class: 'times', role: 'group', 'aria-label': titleOf(name)}, bars),
      make(
        'div.times-ends.small.soft',
        ends.map(({value}) => make('span', value)),
      ),
    ];
  }

  function drawValue({facet, value, most, on}) {
    const text = shownText(textOf(value.value));
    return make('label', {class: 'facet-value', style: {'--share': value.count / most}}, [
      make('input', {
        type: 'checkbox',
        checked: on,
        dataset: {where: value.where},
        onchange: () => toggle({facet: facet.name, where: value.where}),
      }),
      make('span', {class: 'two-lines grow', title: text}, shownName(textOf(value.value))),
      make('span.figures.soft.small', value.count.toLocaleString('en')),
    ]);
  }

  async function update(state) {
    try {
      drawn = await load(state);
    } catch (error) {
      if (isAborted(error)) return true;
      if (drawn === null) refill(element, make('p.small.soft', `No counts: ${error.message}`));
      return false;
    }
    draw(state, drawn);
    changed();
    return true;
  }

  return {element, nameOf, update};
}

/** Text for a value. */
const textOf = value => (value === null ? '(none)' : value === '' ? '(top folder)' : value);

/** The number of a year, or of a month such as 2024-05. */
const stepOf = time => (time.length === 4 ? Number(time) : 12 * Number(time.slice(0, 4)) + Number(time.slice(5)));

const titleOf = name => TITLES[name] ?? shownText(name);
