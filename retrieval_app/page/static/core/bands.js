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
  return make('span', {class: 'band', title: bandWords(band)}, bandDot(band), make('span', shareWords(band)));
}

/** What a mark says beside a label that is the query's, or another one; `isOther` is false where that is not known. */
export function markBand(mark, band, isOther) {
  mark.firstElementChild.replaceWith(isOther ? make('span.dot') : bandDot(band));
  mark.lastElementChild.textContent = shareWords(band, isOther);
}

/** The share in a few words; of an image whose label is seen to be another one it would be read as wrong. */
export const shareWords = (band, isOther = false) => (isOther ? 'another label' : `${percent(band.share)} same label`);

/** The dot alone. @param {{name: string}} band */
export const bandDot = ({name}) => make('span', {class: `dot ${name.replace(' ', '-')}`});

/** A band in a sentence. */
export function bandWords(band) {
  return (
    `${capital(band.name)}: in this gallery ${percent(band.share)} of images as alike as this have the same label`
    + ` (between ${percent(band.low)} and ${percent(band.high)}).`
  );
}

/** What the dots mean, once, above the results. */
export function bandLegend() {
  return make('details.legend', [
    make('summary', [
      make('span', {class: 'legend-title', title: 'What the dots and numbers mean'}, 'Same label:'),
      NAMES.map(([name]) => make('span.legend-name', bandDot({name}), name)),
    ]),
    make('p', [
      'The number on a card is its score: how alike the model finds the two pictures, 1 at most. ',
      'The dot says what such a score is worth in this gallery: of its own images that are as alike as that, ',
      'how many have the same label. ',
      NAMES.map(([name, range], place) => [
        make('span.legend-name', bandDot({name}), `${name}: ${range}`),
        place < NAMES.length - 1 ? ', ' : '. ',
      ]),
      'It is a guide, not a proof: where labels are wrong or rare, look at the pictures.',
    ]),
  ]);
}

/**
 * The share that the calibration's points [[score, share, low, high], …] give for a score; null without points.
 *
 * @param {number[][] | null} points
 * @param {number} score
 */
export function shareAt(points, score) {
  if (!points || points.length === 0) return null;
  let share = points[0][1];
  for (const [at, value] of points) if (at <= score) share = value;
  return share;
}

const capital = text => text[0].toUpperCase() + text.slice(1);
