// What a state shows: hits of a query, images under a filter, or named images; page by page.

import {get, post} from '../core/api.js';
import {NEAR_DUPLICATES} from '../core/url_state.js';

const BROWSED_AT_ONCE = 60;
const NAMED_AT_ONCE = 100;
/** @type {('label' | 'path' | 'precision_at_score')[]} */
const INCLUDE = ['label', 'path'];

/** 'ranking' for a query, 'named' for given ids, else 'browsing'. */
export function kindOf(state) {
  if (state.parts.length > 0) return 'ranking';
  return state.ids.length > 0 ? 'named' : 'browsing';
}

/** The part of a state that decides on its results, as text. */
export function resultsKey(state) {
  const {parts, text, filters, k, min, collapse, by, sort, ids} = state;
  return JSON.stringify(
    kindOf(state) === 'ranking' ? {parts, text, filters, k, min, collapse, by} : {text, filters, sort, ids},
  );
}

/** The filters as one expression; null without any. */
export const whereOf = filters => (filters.length === 0 ? null : filters.map(filter => `(${filter})`).join(' AND '));

/** @param {Part} part */
function queryOf(part) {
  if (part.words !== undefined) return {text: part.words};
  return part.image !== undefined ? {image_id: part.image} : {photo: part.photo};
}

/** A query as the API takes it. @param {Part[]} parts @param {Record<Role, number>} weights */
function queriesOf(parts, weights) {
  return parts.map(part => ({...queryOf(part), weight: weights[part.role], ...(part.crop ? {crop: part.crop} : {})}));
}

/**
 * The results of a state: `await results.next(signal)` adds a page to `items`, until `done`.
 * An item has id, label, path and, in a ranking, rank, score, precision_at_score and copies; `total` is null where it is not counted.
 *
 * @param {State} state
 * @param {Record<Role, number>} weights
 */
export function openResults(state, weights) {
  const read = {ranking: readRanking, named: readNamed, browsing: readBrowsed}[kindOf(state)];
  const results = {
    kind: kindOf(state),
    items: /** @type {Item[]} */ ([]),
    total: /** @type {number | null} */ (null),
    tookMs: /** @type {number | null} */ (null),
    words: /** @type {WordsAnswer | null} */ (null), // how the words of a search were read
    collapsed: /** @type {boolean | null} */ (null), // false where near-duplicates are still being looked for
    place: 0,
    scroll: 0,
    done: false,
    loading: false,
    next,
  };
  /** @param {AbortSignal} signal */
  async function next(signal) {
    const page = await read(state, results, {signal, weights});
    const known = new Set(results.items.map(item => item.id)); // a page of a newer version may repeat some
    const items = page.items.filter(item => !known.has(item.id));
    results.items.push(...items);
    Object.assign(results, {total: page.total ?? null, tookMs: page.tookMs ?? results.tookMs, place: page.place});
    results.done = page.place === null;
    results.collapsed = page.collapsed ?? null;
    results.words = page.words ?? null;
    return items;
  }
  return results;
}

/** @param {State} state */
async function readRanking(state, {place, tookMs}, {signal, weights}) {
  const answer = await post(
    'search',
    {
      queries: queriesOf(state.parts, weights),
      k: state.k,
      offset: place,
      min_score: state.min,
      where: whereOf(state.filters),
      text: state.text || null,
      collapse_duplicates: state.collapse === NEAR_DUPLICATES,
      group_by: state.collapse === NEAR_DUPLICATES ? null : state.collapse || null,
      by: state.by,
      include: [...INCLUDE, 'precision_at_score'],
    },
    {signal},
  );
  const {hits: items, next_offset: next, collapsed, words} = answer;
  return {items, place: next, tookMs: tookMs ?? answer.took_ms, collapsed, words};
}

async function readBrowsed(state, {place}, {signal}) {
  const answer = await get(
    'images',
    {
      where: whereOf(state.filters),
      text: state.text,
      sort: state.sort,
      after: place,
      limit: BROWSED_AT_ONCE,
      include: INCLUDE,
    },
    {signal},
  );
  return {items: answer.images, place: answer.next_after, total: answer.total};
}

async function readNamed(state, {place}, {signal}) {
  const ids = state.ids.slice(place, place + NAMED_AT_ONCE);
  const items = await readImages(ids, {filters: state.filters, text: state.text}, signal);
  const end = place + NAMED_AT_ONCE;
  const unfiltered = state.filters.length === 0 && !state.text;
  return {items, place: end < state.ids.length ? end : null, total: unfiltered ? state.ids.length : null};
}

/**
 * Label and path of named images, in their order; those that are gone are left out.
 *
 * @param {number[]} ids
 * @param {{filters?: string[], text?: string}} narrowed
 * @param {AbortSignal} [signal]
 */
export async function readImages(ids, {filters = [], text = ''} = {}, signal = undefined) {
  const where = whereOf([`id IN (${ids.join(', ')})`, ...filters]);
  const answer = await get('images', {where, text, limit: ids.length, include: INCLUDE}, {signal});
  const images = new Map(answer.images.map(image => [image.id, image]));
  return ids.flatMap(id => images.get(id) ?? []);
}
