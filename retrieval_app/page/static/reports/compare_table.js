// The table of a comparison: what each candidate finds, and whether that is clearly more than the first one does.

import {precise} from '../core/charts.js';
import {count, make, shownText} from '../core/dom.js';
import {data, pairOf} from './compare_data.js';

/** "+2.1 points, +0.8 to +3.4". */
export function shownDifference([mean, low, high]) {
  return `${points(mean)} points, ${points(low)} to ${points(high)}`;
}

/** What a difference is worth: clearly better, clearly worse, or nothing that can be told. */
export function judge({recall: [, low, high], enough}) {
  if (!enough) return {kind: 'unclear', words: 'not clear'};
  if (low > 0) return {kind: 'better', words: 'clearly better'};
  if (high < 0) return {kind: 'worse', words: 'clearly worse'};
  return {kind: 'unclear', words: 'not clear'};
}

const points = share => {
  const text = (100 * share).toFixed(1).replace(/^-0\.0$/, '0.0');
  return text.startsWith('-') || text === '0.0' ? text.replace('-', '\u2212') : `+${text}`;
};

/** The table, in a frame that scrolls where it is too wide. */
export function drawTable() {
  const {candidates, ks} = data;
  const against = `Recall@1 against ${shownText(candidates[0].name)}`;
  const head = ['', 'Width', 'Images/s', ...ks.map(k => `Recall@${k}`), 'MAP@R', 'R-precision'];
  const withScenes = data.scenes?.flattered;
  if (withScenes) head.push('Recall@1 apart');
  head.push(against);
  const best = column => Math.max(...candidates.map(one => column(one)[0]));
  const columns = [...ks.map((_, n) => one => one.recall[n]), one => one.map, one => one.r_precision];
  const tops = columns.map(best);
  const rows = candidates.map((one, place) => {
    const cells = columns.map((column, n) => drawFigure(column(one), column(one)[0] === tops[n]));
    const apart = withScenes ? [make('td.figures', one.apart === null ? '\u2013' : precise(one.apart))] : [];
    return make('tr', [
      make(
        'th',
        {scope: 'row'},
        make('b', shownText(one.name)),
        make('span.soft.small', ` ${one.kind}`),
        drawTraining(one),
      ),
      make('td.figures', one.width.toLocaleString('en')),
      make('td.figures', one.speed === null ? '\u2013' : Math.round(one.speed).toLocaleString('en')),
      cells,
      apart,
      make('td', place === 0 ? make('span.soft', 'the one compared with') : drawVerdict(pairOf(0, place))),
    ]);
  });
  const region = {class: 'panel compare-table', tabindex: 0, role: 'region', 'aria-label': 'Results'};
  return make('div', region, [
    make(
      'table.table',
      make(
        'thead',
        make(
          'tr',
          head.map(text => make('th', {scope: 'col'}, text)),
        ),
      ),
      make('tbody', rows),
    ),
  ]);
}

const drawFigure = ([value, low, high], isBest) =>
  make('td.figures', isBest ? make('b', precise(value)) : precise(value), [
    make('span.interval.soft.small', `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}`),
  ]);

const drawVerdict = found => {
  const {kind, words} = judge(found);
  const few = found.enough ? '' : '; too few differ';
  return [
    make(`span.chip.${kind}`, words),
    make('span.interval.soft.small.figures', shownDifference(found.recall), few),
  ];
};

/** That a row flatters its candidate, where it does: it stands beside the figures, as nobody reads notes below them. */
const drawTraining = one =>
  one.trained_on > 0
  && make(
    'span.chip.warn',
    {title: 'This flatters it: compare on others'},
    `trained on ${one.trained_on.toLocaleString('en')} of these`,
  );

/** What to bear in mind, as a list. */
export function drawCaveats() {
  const {candidates, scenes} = data;
  const over = data.over_scenes ? 'scenes' : 'queries';
  const lines = [
    `Every labelled image asks once for the others of its label; small figures are 95 % intervals over ${over}. A `
      + 'candidate is clearly better where the interval of the difference, over the same queries, is above 0.',
  ];
  for (const one of candidates) {
    const name = shownText(one.name);
    if (one.trained_on) {
      const trained = `${one.trained_on.toLocaleString('en')} of these images`;
      lines.push(`${name} was trained on ${trained}, which flatters it: compare on others.`);
    } else if (one.trained_on === null && one.trained) {
      lines.push(`${name} was trained, and its file does not say on what: on images of its training it is flattered.`);
    }
  }
  if (scenes?.flattered) {
    const what = scenes.certain
      ? 'Shots of a scene find each other'
      : 'Photos that may be of one scene find each other';
    const found = `${count(scenes.images, 'image')} in ${count(scenes.scenes, 'scene')}, by ${scenes.found_by}`;
    lines.push(`${what} (${found}): expect Recall@1 apart of new photos, where none finds its own scene.`);
  }
  return make(
    'ul.soft.small.caveats',
    lines.map(line => make('li', line)),
  );
}
