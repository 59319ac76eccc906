// What answers the page's requests where it is published without a server: the routes of the API, from static files.

import {Refusal, readJson, site} from './files.js';
import {keepPhoto, urlOfPhoto} from './photos.js';
import {search} from './ranking.js';
import {Rows} from './rows.js';

export const ROOT = new URL('v1/', document.baseURI);

const rows = await readJson(site.catalogue).then(
  catalogue => new Rows(catalogue),
  error => /** @type {Error} */ (error), // each request tells of it
);

function listImages({where, text, after = -1, limit = 60, seed = null, sort = ''}) {
  const kept = rowsOrError().filter(where, text) ?? [...rowsOrError().ids.keys()];
  const all = sort ? rowsOrError().sort(kept, sort) : kept;
  const count = Math.min(Number(limit), all.length);
  const evenly = place => (7 * Number(seed) + Math.floor((place * all.length) / count)) % all.length;
  const last = sort
    ? all.findIndex(row => rowsOrError().ids[row] === Number(after)) + 1
    : firstAbove(all, Number(after));
  const start = seed === null ? last : 0;
  const chosen = seed === null ? all.slice(start, start + count) : all.slice(0, count).map((_, i) => all[evenly(i)]);
  const images = chosen.map(row => rowsOrError().describe(row));
  const hasMore = seed === null && images.length > 0 && chosen.at(-1) !== all.at(-1);
  return {version: '', total: all.length, images, next_after: hasMore ? images.at(-1)?.id : null};
}

/** The place of the first row whose id is above one. @param {number[]} all */
function firstAbove(all, id) {
  const place = all.findIndex(row => rowsOrError().ids[row] > id);
  return place < 0 ? all.length : place;
}

function rowsOrError() {
  if (rows instanceof Error) throw rows;
  return rows;
}

/** @type {[RegExp, (params: any, body: any, id: number) => any][]} */
const ROUTES = [
  [/^GET gallery$/, () => ({...site.facts, labels: rowsOrError().labels()})],
  [/^GET images$/, listImages],
  [/^GET images\/(\d+)$/, (_, __, id) => rowsOrError().details(id)],
  [/^GET images\/(\d+)\/labels$/, () => ({shares: []})],
  [/^GET facets$/, params => rowsOrError().facets(params)],
  [/^GET searches$/, () => ({searches: []})],
  [/^GET words$/, () => ({state: 'ready', version: '', count: 0, words: []})],
  [/^GET map$/, () => readJson(site.map)],
  [/^POST search$/, (_, body) => search(rowsOrError(), JSON.parse(body))],
  [/^POST photos$/, ({name}, body) => keepPhoto(body, name)],
];

/** The response to a request. @param {string} url @param {any} request */
export async function send(url, {method = 'GET', body = null, signal = null} = {}) {
  const {pathname, searchParams} = new URL(url);
  const asked = `${method} ${pathname.slice(ROOT.pathname.length)}`;
  try {
    for (const [pattern, answer] of ROUTES) {
      const match = pattern.exec(asked);
      if (!match) continue;
      const found = await answer(Object.fromEntries(searchParams), body, Number(match[1]));
      signal?.throwIfAborted();
      return Response.json(found);
    }
    throw new Refusal('A published gallery cannot do this.', 404, 'not_found');
  } catch (error) {
    if (signal?.aborted) throw error;
    if (!(error instanceof Refusal)) console.error(error);
    const {message, code = 'failed', status = 500} = error;
    return Response.json({error: {code, message}}, {status});
  }
}

/** The address at which the browser loads an image. @param {string} url */
export function locate(url) {
  const path = new URL(url).pathname.slice(ROOT.pathname.length);
  const [, id, kind] = /^images\/(\d+)\/(thumbnail|preview)$/.exec(path) ?? [];
  if (kind) return rows instanceof Error ? '' : rows.imageUrl(Number(id), {large: kind === 'preview'});
  const [, token] = /^photos\/([^/]+)\/preview$/.exec(path) ?? [];
  return (token && urlOfPhoto(decodeURIComponent(token))) || url;
}
