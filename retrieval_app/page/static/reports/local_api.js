// What the label list asks of a server, answered from what stands in the page; in the place of core/api.js there.

import {saveFile} from '../core/dom.js';
import {data, images, isSuspect, items} from './data.js';
import {canUndo, decide, decisionOf, undo, writeFile} from './decisions.js';

const byId = new Map(items.map(item => [item.id, item]));
const NEXT = 50; // as a server has it
const {compare} = new Intl.Collator('en', {numeric: true});

/** Never thrown here: nothing is asked of anybody. */
export class ApiError extends Error {}

/** True of an error that only says that the page itself gave up waiting. */
export const isAborted = () => false;

/** What the page knows of a gallery. */
export const gallery = async () => ({labels: {labelled: data.total || 1, names: data.labels}, can: {review: true}});

/** The doubted labels that pass what is asked for, a page of them. */
export async function get(_, {state, sort, offset, limit, ...filter}) {
  const chosen = choose(filter);
  const decided = chosen.filter(item => decisionOf(item.key));
  const listed = {all: chosen, decided, open: chosen.filter(item => !decisionOf(item.key))}[state];
  return {
    state: 'ready',
    total: listed.length,
    open: chosen.length - decided.length,
    decided: decided.length,
    wrong_share: data.noise_rate,
    is_lower_bound: data.is_lower_bound,
    judged: data.total,
    items: sortItems(listed, sort)
      .slice(offset ?? 0, (offset ?? 0) + limit)
      .map(item => ({...item, decision: decisionOf(item.key)})),
    left: countLeft(chosen.filter(item => !decisionOf(item.key))),
    agreement: [],
    learnt: 0,
    pairs: countPairs(),
    kinds: data.kinds,
    mixed: data.mixed,
    can_undo: canUndo(),
  };
}

/** @param {any} filter */
function choose({label, suggested, kind, verdict, text}) {
  return items.filter(
    item =>
      ofVerdict(item, verdict)
      && (!text || item.wanted.includes(text))
      && (!label || item.label === label)
      && (!suggested || item.suggested === suggested)
      && (!kind || item.kind === kind),
  );
}

/** The same, which is always ready. */
export const getReady = get;

/** Keep decisions, or take the last step back. */
export async function post(path, body) {
  if (path === 'labels/undo') {
    const keys = new Set(undo());
    return {undone: items.filter(item => keys.has(item.key)).map(item => item.id), can_undo: canUndo()};
  }
  if (path === 'labels/accept') return accept(body);
  const changes = body.decisions.map(({image_id: id, decision, label}) => [
    byId.get(id),
    decision === 'open' ? null : {decision, label},
  ]);
  return {decided: changes.length, step: decide(changes), can_undo: canUndo()};
}

function accept({threshold, digest, ...filter}) {
  const chosen = choose(filter).filter(
    item => item.wrong >= threshold && item.verdict !== 'keep' && !decisionOf(item.key),
  );
  const changed = chosen.filter(item => item.verdict === 'change').length;
  const wrong = chosen.reduce((total, item) => total + item.wrong, 0);
  const step = digest ? decide(chosen.map(item => [item, {decision: item.verdict, label: item.new_label}])) : null;
  return {
    digest: 'counted', // nobody else decides in this page
    changed,
    dropped: chosen.length - changed,
    expected_wrong: wrong,
    expected_right: chosen.length - wrong,
    step,
    can_undo: canUndo(),
  };
}

/** Save the file of decisions; gives how many are in it. */
export async function download() {
  const {text, count} = writeFile();
  saveFile(new Blob([text], {type: 'text/csv;charset=utf-8'}), 'decisions.csv');
  return count;
}

/** The picture of an image, of which there is one size. */
export const pictureUrl = id => {
  const base64 = data.pictures[images[id].picture];
  return `data:image/webp;base64,${base64}`;
};
export const thumbnailUrl = pictureUrl;
export const photoUrl = pictureUrl;

/** Why there is no picture of an image. */
export const pictureProblem = id => `No picture: ${data.gone[images[id]?.picture] ?? 'it cannot be shown'}`;

/** How many of the page's images have a verdict, or any that doubts. */
export const countOf = verdict => items.filter(item => ofVerdict(item, verdict)).length;

function ofVerdict(item, verdict) {
  return verdict === 'all' || (verdict === 'suspects' ? isSuspect(item) : item.verdict === verdict);
}

// By `-wrong` as by `wrong`, but falling.
function sortItems(listed, sort) {
  const name = sort.replace('-', '');
  const sign = sort.startsWith('-') ? -1 : 1;
  const differ = (a, b) => (typeof a === 'number' ? a - b : compare(a ?? '', b ?? ''));
  return [...listed].sort((a, b) => sign * differ(a[name], b[name]) || b.wrong - a.wrong || a.order - b.order);
}

// How many wrong labels those that are open hold, and the next ones, by their chances.
function countLeft(open) {
  const chances = open.map(({wrong}) => wrong).sort((a, b) => b - a);
  const sum = values => values.reduce((total, value) => total + value, 0);
  return {wrong: sum(chances), in_next: sum(chances.slice(0, NEXT)), next: Math.min(NEXT, chances.length)};
}

function countPairs() {
  const pairs = new Map();
  for (const {label, suggested} of items) {
    if (!suggested) continue;
    const name = JSON.stringify([label, suggested]);
    const pair = pairs.get(name) ?? {label, suggested, count: 0};
    pair.count += 1;
    pairs.set(name, pair);
  }
  return [...pairs.values()].sort((a, b) => b.count - a.count);
}
