// How far a score can be trusted: a coloured dot and a share, and the words that explain them.

import {make, percent} from './dom.js';

const NAMES = [
  ['very likely', '80 % and more'],
  ['likely', '50 to 80 %'],
  ['uncertain', '20 to 50 %'],
  ['unlikely', 'below 20 %'],
];

/** "87 % same label" with its dot; nothing without a precision. */
export function precisionMark(precision) {
  if (!precision) return null;
  return make(
    'span',
    {class: 'precision', title: precisionText(precision)},
    precisionDot(precision),
    make('span', shortPrecision(precision)),
  );
}

/** Text of the mark beside a label that is the query's, or another one; `isOther` is false where that is not known. */
export function updatePrecisionMark(mark, precision, isOther) {
  mark.firstElementChild.replaceWith(isOther ? make('span.dot') : precisionDot(precision));
  mark.lastElementChild.textContent = shortPrecision(precision, isOther);
}

/** The share in a few words; of an image whose label is seen to be another one it would be read as wrong. */
export const shortPrecision = (precision, isOther = false) =>
  isOther ? 'another label' : `${percent(precision.value)} same label`;

/** The dot alone. @param {{name: string}} precision */
export const precisionDot = ({name}) => make('span', {class: `dot ${name.replace(' ', '-')}`});

/** The precision in a sentence. */
export function precisionText(precision) {
  return (
    `${capital(precision.name)}: in this gallery ${percent(precision.value)} of images with this score have the same label`
    + ` (between ${percent(precision.low)} and ${percent(precision.high)}).`
  );
}

/** What the dots mean, once, above the results. */
export function precisionLegend() {
  return make('details.legend', [
    make('summary', [
      make('span', {class: 'legend-title', title: 'What the dots and numbers mean'}, 'Same label:'),
      NAMES.map(([name]) => make('span.legend-name', precisionDot({name}), name)),
    ]),
    make('p', [
      'The number on a card is its score: how alike the model finds the two images, 1 at most. ',
      'The dot says what such a score is worth in this gallery: of its own pairs of images with that score, ',
      'how many have the same label. ',
      NAMES.map(([name, range], place) => [
        make('span.legend-name', precisionDot({name}), `${name}: ${range}`),
        place < NAMES.length - 1 ? ', ' : '. ',
      ]),
      'It is a guide, not a proof: where labels are wrong or rare, look at the images.',
    ]),
  ]);
}

/**
 * The share that the calibration's points [[score, share, low, high], …] give for a score; null without points.
 *
 * @param {number[][] | null} points
 * @param {number} score
 */
export function precisionAt(points, score) {
  if (!points || points.length === 0) return null;
  let share = points[0][1];
  for (const [at, value] of points) if (at <= score) share = value;
  return share;
}

const capital = text => text[0].toUpperCase() + text.slice(1);
