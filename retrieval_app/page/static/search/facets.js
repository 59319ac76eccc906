// What the images can be told apart by, with counts: labels, folders, metadata; a click on a value is a condition.

import {button, make, refill, shownText} from '../core/dom.js';
import {get, isAborted} from '../core/api.js';
import {kindOf, whereOf} from './results.js';
import {readState, writeState} from '../core/url_state.js';

const SHOWN_AT_FIRST = 8;
const OPEN_AT_FIRST = 3;
const MOST_NAMED = 200; // more of them make too long a condition
const TITLES = {label: 'Label', folder: 'Folder', source: 'Source'};

/**
 * The facets. `changed()` tells that names of conditions became known. Has `element`, `nameOf` and `update(state)`, false
 * if there was no answer.
 */
export function makeFacets({changed}) {
  const element = make('section', {class: 'facets', 'aria-label': 'Narrow down'});
  const known = new Map(); // expression -> {facet, value}
  const wide = new Set(); // names of facets that show all their values
  const folded = new Map(); // name of a facet -> whether it is open
  let drawn = null;
  let running = null;

  /** The facet's values that a condition stands for: `label = 'a' OR label = 'b'`; null if it is no facet's. */
  function readCondition(filter) {
    const parts = known.has(filter) ? [filter] : filter.split(' OR ');
    const found = parts.map(part => known.get(part));
    if (found.some(entry => !entry || entry.facet !== found[0].facet)) return null;
    return {facet: found[0].facet, wheres: parts, values: found.map(entry => entry.value)};
  }

  function nameOf(filter) {
    const read = readCondition(filter);
    return read
      ? `${titleOf(read.facet)}: ${read.values.map(value => (value === '' ? '(top folder)' : value)).join(' or ')}`
      : filter;
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
    const ask = filters => get('facets', {where: whereOf([...named, ...filters]), text: state.text}, {signal});
    if (known.size === 0 && state.filters.length > 0) learn(await get('facets', {}, {signal}));
    const answer = learn(await ask(state.filters));
    // Within a facet values add up, so its counts are those without its own condition.
    return Promise.all(
      answer.facets.map(async facet => {
        const others = state.filters.filter(filter => readCondition(filter)?.facet !== facet.name);
        if (others.length === state.filters.length) return facet;
        return learn(await ask(others)).facets.find(entry => entry.name === facet.name) ?? facet;
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
      && facet.values.every(({value, count}) =>
        labels.values.some(label => label.value === value && label.count === count),
      );
    const focused = element.querySelector(':focus')?.dataset.where;
    refill(element, [
      facets
        .filter(facet => facet.values.length > 0)
        .map((facet, number) => drawFacet(state, {facet, open: number < OPEN_AT_FIRST && !sameAsLabels(facet)})),
    ]);
    if (focused) element.querySelector(`[data-where="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
  }

  /** @param {State} state @param {{facet: FacetEntry, open: boolean}} given */
  function drawFacet(state, {facet, open}) {
    const chosen = state.filters.map(readCondition).find(read => read?.facet === facet.name)?.wheres ?? [];
    const all = wide.has(facet.name);
    const shown = facet.values.filter(({where}, place) => all || place < SHOWN_AT_FIRST || chosen.includes(where));
    const most = Math.max(...facet.values.map(value => value.count));
    const hidden = facet.values.length - shown.length;
    if (!folded.has(facet.name)) folded.set(facet.name, open || chosen.length > 0);
    const summary = make('summary', titleOf(facet.name));
    const details = make('details', {class: 'facet', open: folded.get(facet.name)}, [
      summary,
      make('ul', [shown.map(value => make('li', drawValue({facet, value, most, on: chosen.includes(value.where)})))]),
      (hidden > 0 || all)
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
        && (all || hidden === 0)
        && make('p.small.soft', `${facet.more.toLocaleString('en')} more values: write one in the text box`),
    ]);
    details.addEventListener('toggle', () => folded.set(facet.name, details.open));
    summary.addEventListener('click', () =>
      requestAnimationFrame(() => details.open && details.scrollIntoView({block: 'nearest'})),
    );
    return details;
  }

  function drawValue({facet, value, most, on}) {
    const text = value.value === '' ? '(top folder)' : shownText(value.value);
    return make('label', {class: 'facet-value', style: {'--share': value.count / most}}, [
      make('input', {
        type: 'checkbox',
        checked: on,
        dataset: {where: value.where},
        onchange: () => toggle({facet: facet.name, where: value.where}),
      }),
      make('span', {class: 'clip grow', title: text}, text),
      make('span.figures.soft.small', value.count.toLocaleString('en')),
    ]);
  }

  return {
    element,
    nameOf,
    async update(state) {
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
    },
  };
}

const titleOf = name => TITLES[name] ?? shownText(name);
