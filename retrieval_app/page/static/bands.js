// How far a score can be trusted: a coloured dot and a share, and the words that explain them.

import {make, percent} from './dom.js';

const NAMES = [
  ['very likely', '80 % and more'],
  ['likely', '50 to 80 %'],
  ['doubtful', '20 to 50 %'],
  ['unlikely', 'below 20 %'],
];

/** "87 % same label" with its dot; nothing without a band. */
export function bandMark(band) {
  if (!band) return null;
  return make('span', {class: 'band', title: bandWords(band)}, bandDot(band), `${percent(band.share)} same label`);
}

/** The dot alone. */
export function bandDot({name}) {
  return make('span', {class: `dot ${name.replace(' ', '-')}`});
}

/** A band in a sentence. */
export function bandWords(band) {
  return (
    `${capital(band.name)}: in this gallery ${percent(band.share)} of neighbours at this score have the same label` +
    ` (between ${percent(band.low)} and ${percent(band.high)}).`
  );
}

/** What the dots mean, once, above the results. */
export function bandLegend() {
  return make(
    'details',
    {class: 'legend'},
    make(
      'summary',
      {},
      make('span', {class: 'visually-hidden'}, 'What the dots mean: '),
      NAMES.map(([name]) => make('span', {class: 'legend-name'}, bandDot({name}), name)),
    ),
    make(
      'p',
      {},
      'How often a neighbour at this score has the same label, counted on this gallery\u2019s own labels: ',
      NAMES.map(([name, range]) => `${name}, ${range}`).join('; '),
      '. It is a guide, not a proof: ',
      'where labels are wrong or rare, look at the pictures.',
    ),
  );
}

/** The share that the calibration's points [[score, share, low, high], …] give for a score; null without points. */
export function shareAt(points, score) {
  if (!points || points.length === 0) return null;
  let share = points[0][1];
  for (const [at, value] of points) if (at <= score) share = value;
  return share;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
