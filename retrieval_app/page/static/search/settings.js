// How a ranking is made and shown: by what, the lowest score, groups collapsed, how many at a time.

import {make, percent} from '../core/dom.js';
import {withGallery} from '../core/api.js';
import {precisionAt} from '../core/precision.js';
import {NEAR_DUPLICATES, writeState} from '../core/url_state.js';

const COUNTS = [12, 24, 48, 96, 200];
const LOWEST = 0;
const COMPARED = {semantic: 'similar content', copy: 'copies'};

/** The settings. Has `element`, `update(state)` and `learn()` for when the gallery's calibration is there. */
export function makeSettings() {
  const slider = make('input', {
    type: 'range',
    min: LOWEST,
    max: 1,
    step: 0.01,
    id: 'least-score',
    'aria-describedby': 'least-words',
  });
  const words = make('output', {class: 'small soft', id: 'least-words', for: 'least-score'});
  const collapse = make('select', {class: 'select', id: 'collapse'});
  const counts = make('select', {class: 'select', id: 'how-many'});
  const by = make(
    'select',
    {class: 'select', id: 'compared'},
    Object.entries(COMPARED).map(([value, named]) => make('option', {value}, named)),
  );
  const asking = make('label.switch.count', {hidden: true}, 'Find', by);
  const element = make('section', {class: 'settings', 'aria-label': 'Ranking'}, [
    asking,
    make('div.field', make('label', {for: 'least-score'}, 'Score at least'), slider, words),
    make('label.switch.count', 'Collapse', collapse),
    make('label.switch.count', 'Results at a time', counts),
  ]);
  let points = null;
  let collapsed = '';
  let columns = /** @type {string[]} */ ([]);

  function drawGroups() {
    const named = {'': 'nothing', [NEAR_DUPLICATES]: 'near-duplicates', label: 'label', folder: 'folder'};
    const values = new Set([...Object.keys(named), ...columns, collapsed]);
    collapse.replaceChildren(
      ...[...values].map(value => make('option', {value, selected: value === collapsed}, named[value] ?? value)),
    );
  }

  function tell() {
    const score = Number(slider.value);
    const share = by.value === 'semantic' ? precisionAt(points, score) : null; // learnt from scores of kinds
    const off = score <= LOWEST;
    words.textContent = off
      ? 'any score'
      : `${score.toFixed(2)}${share === null ? '' : ` · there, ${percent(share)} have the same label`}`;
    slider.setAttribute('aria-valuetext', words.textContent);
    slider.style.setProperty('--share', String(score));
  }

  slider.addEventListener('input', tell);
  slider.addEventListener('change', () => {
    const score = Number(slider.value);
    writeState({min: score <= LOWEST ? null : score});
  });
  collapse.addEventListener('change', () => writeState({collapse: collapse.value}));
  by.addEventListener('change', () => writeState({by: by.value === 'copy' ? 'copy' : 'semantic'}));
  counts.addEventListener('change', () => writeState({k: Number(counts.value)}));
  function learn() {
    withGallery(({calibration, similarity, metadata_columns: known}) => {
      columns = known;
      drawGroups();
      asking.hidden = similarity.length < 2;
      points = calibration?.state === 'ready' ? calibration.points : null;
      tell();
    });
  }

  learn();
  return {
    learn,
    element,
    update(state) {
      slider.value = state.min ?? LOWEST;
      collapsed = state.collapse;
      drawGroups();
      by.value = state.by;
      const numbers = [...new Set([...COUNTS, state.k])].sort((one, other) => one - other);
      counts.replaceChildren(
        ...numbers.map(number => make('option', {value: number, selected: number === state.k}, number)),
      );
      element.hidden = state.parts.length === 0;
      tell();
    },
  };
}
