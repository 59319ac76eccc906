// Charts as SVG, drawn at the width they have, each with its numbers as a table.

import {count, make, percent, refill} from './dom.js';
import {makeSvg} from './icons.js';

const HEIGHT = 250;
const ROOM = {left: 46, right: 14, top: 12, bottom: 40};

/** "78.9 %": a share with the digit that its interval calls for. @param {number} share */
export const precise = share => `${(100 * share).toFixed(1)} %`;

/** Bar of a share in 0..1; the text beside it has the number. */
export function bar(share, kind = '') {
  const width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make('span', {class: `share-track ${kind}`, 'aria-hidden': 'true'}, make('i', {style: {width}}));
}

/** How often one of the same label is among the first K. @param {RecallEntry[]} shares */
export function recallChart(shares) {
  const points = shares.map(({k, value, interval: [low, high]}) => ({k, value, low, high}));
  const places = points.map((_, n) => n);
  const low = Math.max(0, Math.floor(10 * Math.min(...points.map(point => point.low)) - 0.5) / 10);
  return figure({
    title: 'Found among the first K',
    about: `Recall@K: ${points.map(point => `${precise(point.value)} at ${point.k}`).join(', ')}`,
    head: ['First K results', 'Of the searches, find one of the same label', '95 % interval'],
    rows: points.map(point => [point.k, precise(point.value), `${precise(point.low)} to ${precise(point.high)}`]),
    draw(width) {
      const {x, y, bottom, add, svg} = drawAxes(width, {
        x: {from: -0.4, to: places.length - 0.4, ticks: places, text: n => points[n].k, name: 'K, number of results'},
        y: {from: low, to: 1, ticks: spread(low, 1, 4), text: percent},
      });
      add('path', {class: 'line tone-same', d: path(points.map((point, n) => [x(n), y(point.value)]))});
      points.forEach(({k, value, low: least, high}, n) => {
        const title = makeSvg('title', {}, `first ${k}: ${precise(value)}`);
        add('path', {class: 'whisker', d: `M${x(n)} ${y(least)}V${y(high)}`});
        add('circle', {class: 'point tone-same', cx: x(n), cy: y(value), r: 4}, title);
        // Under the line, which never falls, and beside the whisker, so that it touches neither.
        add(
          'text',
          {class: 'value', x: x(n) + 6, y: Math.min(y(value) + 17, bottom - 5)},
          value === 1 ? '100' : (100 * value).toFixed(1),
        );
      });
      return svg;
    },
  });
}

/**
 * How many images have their nearest of the same, and of another label, between two of the `edges` of the score.
 *
 * @param {ScoreHistogram} histogram
 */
export function scoreChart({edges, same, different}) {
  const used = same.map((value, n) => value > 0 || different[n] > 0);
  const [first, end] = [Math.max(0, used.indexOf(true)), used.lastIndexOf(true) + 1];
  const [from, to] = [edges[first], edges[end] ?? 1];
  const shares = values => {
    const sum = values.reduce((total, each) => total + each, 0);
    return values.map(value => value / Math.max(1, sum));
  };
  const [ofSame, ofDifferent] = [shares(same), shares(different)];
  const top = Math.max(...ofSame, ...ofDifferent);
  const row = n => [
    `${edges[n].toFixed(2)} to ${edges[n + 1].toFixed(2)}`,
    precise(ofSame[n]),
    precise(ofDifferent[n]),
  ];
  return figure({
    title: 'Scores of same and of other label',
    about:
      `Distribution of the scores of the nearest neighbour of the same label, ${peak(edges, same)}, `
      + `and of the nearest one of another label, ${peak(edges, different)}`,
    keys: {'tone-same': 'nearest of the same label', 'tone-different': 'nearest of another label'},
    head: ['Score', 'Nearest of the same label', 'Nearest of another label'],
    rows: used.flatMap((isUsed, n) => (isUsed ? [row(n)] : [])),
    draw(width) {
      const y = {from: 0, to: top * 1.05, ticks: [], text: String};
      const axes = drawAxes(width, {x: scoreAxis(from, to, width), y});
      for (const [kind, values] of Object.entries({'tone-different': ofDifferent, 'tone-same': ofSame})) {
        const steps = values.slice(first, end).map((value, n) => `${axes.y(value)}H${axes.x(edges[first + n + 1])}`);
        const line = `M${axes.x(from)} ${steps.join('V')}`;
        axes.add('path', {class: `area ${kind}`, d: `${line}V${axes.y(0)}H${axes.x(from)}Z`});
        axes.add('path', {class: `line ${kind}`, d: line});
      }
      return axes.svg;
    },
  });
}

/**
 * Histogram of images by a measure, between ascending `edges`; bins with the problem stand out. All bins are equally wide,
 * also where the edges grow by a factor.
 *
 * @param {{title: string, edges: number[], counts: number[], marked: (middle: number) => boolean}} given
 */
export function measureChart({title, edges, counts, marked}) {
  const top = Math.max(...counts);
  const height = value => Math.sqrt(value / top); // few images are seen beside many
  const middle = n => (edges[n] + edges[n + 1]) / 2;
  return figure({
    title,
    about: `Histogram of ${title}, from ${shortNumber(edges[0])} to ${shortNumber(edges[edges.length - 1])}`,
    head: [title, 'Images'],
    rows: counts.map((value, n) => [`${shortNumber(edges[n])} to ${shortNumber(edges[n + 1])}`, value]),
    draw(width) {
      const ticks = spread(0, counts.length, width < 480 ? 4 : 8).filter(Number.isInteger);
      const {x, y, add, svg} = drawAxes(width, {
        x: {from: -0.6, to: counts.length + 0.6, ticks, text: n => shortNumber(edges[n]), name: title},
        y: {from: 0, to: 1.05, ticks: [], text: String},
      });
      counts.forEach((value, n) => {
        const shape = `M${x(n)} ${y(0)}V${y(height(value))}H${x(n + 1)}V${y(0)}Z`;
        const kind = marked(middle(n)) ? 'tone-different' : 'tone-same';
        add('path', {class: `area ${kind}`, d: shape}, makeSvg('title', {}, count(value, 'image')));
      });
      return svg;
    },
  });
}

/** "0.083", "1.2", "146". @param {number} value */
export const shortNumber = value => String(Number(value.toPrecision(value >= 100 ? Math.ceil(Math.log10(value)) : 2)));

/**
 * How often a neighbour at a score has the same label: points [[score, share, low, high]].
 *
 * @param {number[][]} points
 */
export function calibrationChart(points) {
  const from = points[0][0];
  const last = points[points.length - 1];
  const to = Math.max(last[0], from + 0.01);
  const half = points.find(([, share]) => share >= 0.5);
  return figure({
    title: 'What a score means here',
    about:
      `The share of neighbours with the same label rises with the score, from ${percent(points[0][1])} at `
      + `${from.toFixed(2)} to ${percent(last[1])} at ${to.toFixed(2)}${half ? `; it is one half at ${half[0].toFixed(2)}` : ''}`,
    keys: {'tone-same': 'has the same label', interval: '95 % interval'},
    head: ['Score', 'Of the neighbours, have the same label', '95 % interval'],
    rows: points.map(([score, share, ...interval]) => [
      score.toFixed(3),
      precise(share),
      interval.map(precise).join(' to '),
    ]),
    draw(width) {
      const {x, y, add, svg} = drawAxes(width, {
        x: scoreAxis(from, to, width),
        y: {from: 0, to: 1, ticks: [0, 0.2, 0.5, 0.8, 1], text: percent},
      });
      const upper = points.map(([score, , , high]) => [x(score), y(high)]);
      const lower = points.map(([score, , low]) => [x(score), y(low)]).reverse();
      add('path', {class: 'area interval', d: `${path([...upper, ...lower])}Z`});
      add('path', {class: 'line tone-same', d: path(points.map(([score, share]) => [x(score), y(share)]))});
      return svg;
    },
  });
}

/**
 * @param {{
 *   title: string, about: string, keys?: Record<string, string>, head: string[], rows: (string | number)[][],
 *   draw: (width: number) => Element,
 * }} given
 */
function figure({title, about, keys = {}, head, rows, draw}) {
  const stage = make('div', {class: 'chart', role: 'img', 'aria-label': about});
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.round(stage.clientWidth);
    if (now < 60 || now === width) return;
    width = now;
    refill(stage, draw(width));
  }).observe(stage);
  const legend = Object.entries(keys).map(([kind, text]) =>
    make('span', {class: `chart-key ${kind}`}, make('i', {'aria-hidden': 'true'}), text),
  );
  const columns = head.map(text => make('th', {scope: 'col'}, text));
  const lines = rows.map(([first, ...rest]) =>
    make('tr', make('th', {scope: 'row'}, first), [rest.map(text => make('td', text))]),
  );
  const numbers = make('table', make('thead', make('tr', columns)), make('tbody', lines));
  const region = {class: 'chart-scroller', tabindex: 0, role: 'region', 'aria-label': `${title}, as a table`};
  return make('figure.chart-figure', [
    make('figcaption', make('h3', title), legend),
    stage,
    make('details.chart-numbers', make('summary', 'The numbers'), make('div', region, numbers)),
  ]);
}

const scoreAxis = (from, to, width) => ({
  from,
  to,
  ticks: spread(from, to, width < 480 ? 4 : 7),
  text: value => value.toFixed(2),
  name: 'Score (cosine similarity)',
});

function drawAxes(width, {x, y}) {
  const svg = makeSvg('svg', {width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, 'aria-hidden': 'true'});
  /** @param {string} tag @param {object} attributes @param {...(string | Node)} children */
  const add = (tag, attributes, ...children) => svg.append(makeSvg(tag, attributes, ...children));
  const left = y.ticks.length ? ROOM.left : ROOM.right;
  const right = width - ROOM.right;
  const bottom = HEIGHT - ROOM.bottom;
  const placeX = value => round(left + ((value - x.from) / (x.to - x.from)) * (right - left));
  const placeY = value => round(bottom - ((value - y.from) / (y.to - y.from)) * (bottom - ROOM.top));
  for (const tick of y.ticks) {
    add('path', {class: 'rule', d: `M${left} ${placeY(tick)}H${right}`});
    add('text', {x: left - 8, y: placeY(tick) + 4, 'text-anchor': 'end'}, y.text(tick));
  }
  add('path', {class: 'axis', d: `M${left} ${bottom}H${right}`});
  for (const tick of x.ticks) add('text', {x: placeX(tick), y: bottom + 16, 'text-anchor': 'middle'}, x.text(tick));
  add('text', {class: 'name', x: (left + right) / 2, y: HEIGHT - 6, 'text-anchor': 'middle'}, x.name);
  return {svg, add, x: placeX, y: placeY, bottom};
}

const round = value => Math.round(10 * value) / 10;
const path = points => points.map(([x, y], n) => `${n ? 'L' : 'M'}${round(x)} ${round(y)}`).join('');
const peak = (edges, values) => {
  const n = values.indexOf(Math.max(...values));
  return values[n] > 0 ? `highest around ${((edges[n] + edges[n + 1]) / 2).toFixed(2)}` : 'no image';
};

// About `most` round numbers from `from` to `to`.
function spread(from, to, most) {
  const raw = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5].find(factor => factor * power >= raw) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + 1e-9; tick += step) {
    ticks.push(Number(tick.toFixed(10)));
  }
  return ticks;
}
