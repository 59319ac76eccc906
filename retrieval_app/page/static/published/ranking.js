// Exact search among the vectors of a published gallery, which are loaded with the first search.

import {count as countOf} from '../core/dom.js';
import {Refusal, readBytes, site} from './files.js';
import {vectorOf} from './photos.js';

const MOST_DUPLICATES = 100;
const WRITTEN_BONUS = 2; // more than any cosine: images with the words come first
const MOST_AVERAGED = 1000; // images that tell what words look like
const FEWEST_WRITTEN = 5; // from which others that look so are found, too
const LEAST_NORM = 1e-4;

/** @typedef {{scales: Float32Array, rows: Int8Array, start: number}} Shard */

/** @type {Promise<Shard[]> | null} */
let loading = null;

function openVectors() {
  loading ??= readShards().catch(error => {
    loading = null;
    throw error;
  });
  return loading;
}

async function readShards() {
  const files = await Promise.all(site.vectors.map(({file}) => readBytes(file)));
  let start = 0;
  return files.map((content, number) => {
    const {count} = site.vectors[number];
    const shard = {scales: new Float32Array(content, 0, count), rows: new Int8Array(content, 4 * count), start};
    start += count;
    return shard;
  });
}

/** @param {Shard[]} shards @param {number} row */
function readVector(shards, row) {
  const width = site.facts.embedding_dim;
  const shard = /** @type {Shard} */ (shards.findLast(({start}) => start <= row));
  const place = row - shard.start;
  return Float32Array.from(
    shard.rows.subarray(place * width, (place + 1) * width),
    value => value * shard.scales[place],
  );
}

/** The cosine of every row. @param {Shard[]} shards @param {Float32Array} query */
function scoreAll(shards, query) {
  const width = query.length;
  const scores = new Float32Array(site.facts.images);
  for (const {scales, rows, start} of shards) {
    for (let place = 0, at = 0; place < scales.length; place += 1) {
      let sum = 0;
      for (let i = 0; i < width; i += 1, at += 1) sum += query[i] * rows[at];
      scores[start + place] = sum * scales[place];
    }
  }
  return scores;
}

/** The rows with all words in their published texts. @param {string} text */
function written(rows, text) {
  const found = rows.filter(null, text);
  if (found.length === 0) throw new Refusal(`No image here has the words \u201c${text}\u201d in its published texts.`);
  return found;
}

/** What images with some words look like: their mean, less that of all. @param {Shard[]} shards @param {number[]} found */
function learnWords(shards, found) {
  const mean = list => {
    const some = list.filter((_, place) => place % Math.ceil(list.length / MOST_AVERAGED) === 0);
    const vectors = some.map(row => readVector(shards, row));
    return vectors[0].map((_, i) => vectors.reduce((sum, vector) => sum + vector[i], 0) / vectors.length);
  };
  const all = mean(Array.from({length: site.facts.images}, (_, row) => row));
  const vector = mean(found).map((value, i) => value - all[i]);
  const norm = Math.hypot(...vector) || 1;
  return vector.map(value => value / norm);
}

/** The unit vector of the weighted sum of the parts. @param {any[]} parts */
async function findVector(parts, {shards, rows}) {
  const vectors = await Promise.all(
    parts.map(part => {
      if (part.image_id !== undefined) return readVector(shards, rows.find(part.image_id));
      if (part.photo !== undefined) return vectorOf(part.photo, part.crop ?? null);
      return learnWords(shards, written(rows, part.text));
    }),
  );
  const weights = parts.map(({weight = 1}) => (parts.length === 1 ? Math.abs(weight) : weight));
  const total = vectors[0].map((_, i) => vectors.reduce((sum, vector, part) => sum + weights[part] * vector[i], 0));
  const norm = Math.hypot(...total);
  if (norm < LEAST_NORM) throw new Refusal('The parts of the query cancel each other out; change their weights.');
  return total.map(value => value / norm);
}

/** The rows that a query finds, best first; those of `own` have its words. @param {import('./rows.js').Rows} rows */
function rankRows(rows, {queries, where, text, min_score: least}, {scores, own}) {
  const asked = new Set(queries.map(({image_id: id}) => id));
  const isWanted = row => !asked.has(rows.ids[row]) && scores[row] >= (least ?? -Infinity);
  const found = (rows.filter(where, text) ?? [...rows.ids.keys()]).filter(isWanted);
  const isLearnt = !own || own.size >= FEWEST_WRITTEN;
  const rank = row => scores[row] + (own?.has(row) ? WRITTEN_BONUS : 0);
  const order = Uint32Array.from(isLearnt ? found : found.filter(row => own.has(row)));
  return order.sort((one, other) => rank(other) - rank(one) || one - other);
}

/** What POST /v1/search answers. @param {import('./rows.js').Rows} rows @param {any} query */
export async function search(rows, query) {
  const started = performance.now();
  const {queries, k, offset = 0, collapse_duplicates: collapse, group_by: column} = query;
  const shards = await openVectors();
  const scores = scoreAll(shards, await findVector(queries, {shards, rows}));
  const text = queries.length === 1 ? queries[0].text : undefined;
  const own = text === undefined ? null : new Set(written(rows, text));
  const order = rankRows(rows, query, {scores, own});
  const groupOf = collapse ? row => rows.groups.get(rows.ids[row]) : column ? rows.group(column) : null;
  const found = groupOf ? collapseGroups(order, groupOf) : Array.from(order.subarray(0, offset + k + 1), row => [row]);
  const score = row => Math.round(scores[row] * 1e6) / 1e6;
  const hits = found
    .slice(offset, offset + k)
    .map(([row, ...others], place) => ({
      rank: offset + place + 1,
      score: score(row),
      ...rows.describe(row),
      ...(own && {found_by: own.has(row) ? 'words' : 'looks', words: own.has(row) ? splitWords(text) : []}),
      ...(others.length > 0 && {
        duplicates: others.slice(0, MOST_DUPLICATES).map(other => ({id: rows.ids[other], score: score(other)})),
        duplicates_count: others.length,
      }),
    }));
  return {
    version: '',
    took_ms: performance.now() - started,
    hits,
    next_offset: found.length > offset + k ? offset + k : null,
    collapsed: collapse ? true : null,
    words: own && describeWords(text, own.size),
  };
}

function describeWords(text, images) {
  const isLearnt = images >= FEWEST_WRITTEN;
  return {
    understood: Object.fromEntries(splitWords(text).map(word => [word, [word]])),
    images,
    looks: isLearnt ? 'taught' : null,
    explanation: `${countOf(images, 'image')} with these words${isLearnt ? ', and what looks like them' : ''}`,
  };
}

const splitWords = text => text.toLowerCase().split(/\s+/).filter(Boolean);

/** Rows in their order, each with those of its group behind it. @param {Uint32Array} order @param {(row: number) => any} groupOf */
function collapseGroups(order, groupOf) {
  const found = new Map();
  for (const row of order) {
    const group = groupOf(row) ?? Symbol('alone');
    const known = found.get(group);
    if (known) known.push(row);
    else found.set(group, [row]);
  }
  return /** @type {number[][]} */ ([...found.values()]);
}
