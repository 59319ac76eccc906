// Queries side by side: a photo, and what each of two candidates finds for it, right ones marked.

import {count, icon, make, refill, shownScore, shownText} from '../core/dom.js';
import {data, photoOf} from './compare_data.js';

const FOUND = {first: ['A right, B wrong'], second: ['B right, A wrong'], wrong: ['both wrong']};

/** The cards of some queries, by their numbers. */
export function drawQueries(place, queries, {a, b, filter, total, label}) {
  const cards = queries.map(number => drawQuery(data.queries[number], {a, b}));
  if (!cards.length) {
    const where = label === null ? '' : ` of ${shownText(label)}`;
    const why = total
      ? `None of the ${count(total, 'query', 'queries')}${where} is among those drawn for this page; queries.csv has all.`
      : `There is no query${where} of this kind.`;
    refill(place, make('div.notice', make('h2', 'Nothing to show'), make('p', why)));
    return;
  }
  const drawn = cards.length < total ? ', drawn at random' : '';
  const all = `${cards.length.toLocaleString('en')} of ${count(total, 'query', 'queries')}${drawn}: ${FOUND[filter]}`;
  refill(place, make('p.soft.small', {role: 'status'}, all), make('ol.queries', cards));
}

function drawQuery(query, {a, b}) {
  const {path, label} = photoOf(query.photo);
  return make('li.panel.query', {tabindex: -1, 'aria-label': `${shownText(label)}: ${shownText(path)}`}, [
    make('div.asked', [
      drawPicture(query.photo, `The query, ${shownText(label)}`),
      make('b.clip', {title: shownText(label)}, shownText(label)),
      make('span.soft.small.clip', {title: shownText(path)}, shownText(path)),
    ]),
    make('div.rankings', drawRanking('A', a, query, label), drawRanking('B', b, query, label)),
  ]);
}

function drawRanking(letter, candidate, query, label) {
  const hits = query.hits[candidate].map(([photo, score], place) => drawHit(photo, {score, place, label}));
  const name = shownText(data.candidates[candidate].name);
  return make('section', {'aria-label': `What ${letter}, ${name}, finds`}, [
    make('h3.small', make('span.letter', letter), ` ${name}`),
    make('ol.hits', hits),
  ]);
}

function drawHit(photo, {score, place, label}) {
  const found = photoOf(photo);
  const right = found.label === label;
  const words = `${place + 1}: ${right ? 'right' : 'wrong'}, ${shownText(found.label ?? 'no label')}`;
  return make(`li.hit.${right ? 'right' : 'wrong'}`, {title: `${shownText(found.path)}, ${shownScore(score, 3)}`}, [
    drawPicture(photo, words),
    make('span.mark', icon(right ? 'check' : 'close', 13)),
    make('span.small.clip.name', shownText(found.label ?? 'no label')),
  ]);
}

function drawPicture(number, alt) {
  const {picture, problem} = photoOf(number);
  if (!picture) return make('span.picture.lost', make('span.gone', `No picture: ${problem}`));
  const source = `data:image/webp;base64,${picture}`;
  return make('span.picture', make('img', {alt, src: source, loading: 'lazy', decoding: 'async', draggable: 'false'}));
}
