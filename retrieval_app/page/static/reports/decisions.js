// What was decided on the page of an audit: kept by the browser, written to and read from decisions.csv.

import {data, images, items, keyOf} from './data.js';

const COLUMNS = ['path', 'sha256', 'label', 'decision', 'new_label'];
const WORDS = ['keep', 'change', 'drop'];
const PREFIX = `retrieval-audit/${data.key}/`;

const named = fields => Object.fromEntries(COLUMNS.map((name, place) => [name, fields[place]]));
const decisions = new Map();
const given = new Map(data.decisions.map(named).map(entry => [keyOf(entry), entry]));
const steps = [];
let storage = null;
let unsaved = false;

/** Take up what was decided before; `warn()` where this browser keeps nothing, which it is asked again at its end. */
export function openStorage(warn) {
  for (const [key, entry] of given) decisions.set(key, entry);
  const giveUp = () => {
    storage = null;
    warn();
  };
  try {
    storage = window.localStorage;
    storage.setItem(PREFIX, '');
    storage.removeItem(PREFIX);
    Object.keys(storage)
      .filter(name => name.startsWith(PREFIX))
      .forEach(recall);
  } catch {
    giveUp();
  }
  window.addEventListener('beforeunload', event => {
    if (storage === null && unsaved) event.preventDefault();
  });
}

/** The decision about an image as the label list has it; null without one. */
export function decisionOf(key) {
  const entry = decisions.get(key);
  return entry ? {decision: entry.decision, label: entry.new_label || null} : null;
}

/** Decide as one step: [[item, decision | null]]. */
export function decide(changes) {
  return take(changes.map(([item, decision]) => [item.key, decision && entryFor(item, decision)]));
}

/** Take the last step back; the keys that it was about, none where there is nothing to take back. */
export function undo() {
  const changes = steps.pop() ?? [];
  apply(changes);
  return changes.map(([key]) => key);
}

/** Whether anything can be taken back. */
export const canUndo = () => steps.length > 0;

/** The file, and how many decisions are in it: those of the page in its order, then those about other images. */
export function writeFile() {
  const here = new Set(items.map(({key}) => key));
  const entries = items
    .filter(({key}) => decisions.has(key))
    .map(({id, key}) => ({...decisions.get(key), path: images[id].path}));
  for (const [key, entry] of decisions) if (!here.has(key)) entries.push(entry);
  const table = [COLUMNS, ...entries.map(entry => COLUMNS.map(name => entry[name]))];
  unsaved = false;
  return {text: table.map(writeLine).join(''), count: entries.length};
}

/** Take over the decisions of a file as one step; how many there are. Nothing is taken of a file that is none. */
export function readFile(text) {
  const [header, ...lines] = readCsv(text);
  const places = COLUMNS.map(name => (header ?? []).indexOf(name));
  if (places.includes(-1)) throw new Error(`expected a header with the columns ${COLUMNS.join(',')}`);
  const entries = lines.map((fields, row) => checkEntry(named(places.map(place => fields[place] ?? '')), row));
  const found = new Map(entries.map(entry => [keyOf(entry), entry]));
  take([...found]);
  return found.size;
}

function checkEntry(entry, row) {
  const {decision} = entry;
  const checked = {...entry, new_label: decision === 'change' ? entry.new_label.trim() : ''};
  if (!WORDS.includes(decision) || !entry.sha256 || (decision === 'change' && !checked.new_label)) {
    throw new Error(`row ${row + 1}: expected keep, change with a new_label, or drop`);
  }
  return checked;
}

function entryFor({id, sha256, label}, {decision, label: other}) {
  return {path: images[id].path, sha256, label, decision, new_label: other ?? ''};
}

function take(changes) {
  steps.push(changes.map(([key]) => [key, decisions.get(key) ?? null]));
  apply(changes);
  return steps.length;
}

function apply(changes) {
  for (const [key, entry] of changes) {
    if (entry) decisions.set(key, entry);
    else decisions.delete(key);
    keep(key, entry);
  }
}

function keep(key, entry) {
  unsaved = true;
  try {
    if (entry || given.has(key)) storage?.setItem(PREFIX + key, JSON.stringify(entry));
    else storage?.removeItem(PREFIX + key);
  } catch {
    storage = null;
  }
}

function recall(name) {
  const key = name.slice(PREFIX.length);
  let entry;
  try {
    entry = JSON.parse(storage.getItem(name));
    if (entry !== null) entry = checkEntry(entry, 0);
  } catch {
    return; // of something else
  }
  if (entry === null) decisions.delete(key);
  else if (keyOf(entry) === key) decisions.set(key, entry);
}

function writeLine(fields) {
  return `${fields.map(field => (/[",\r\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)).join(',')}\r\n`;
}

function readCsv(text) {
  const table = [];
  let fields = [];
  const pattern = /(?:"((?:[^"]|"")*)"|([^,"\r\n]*))(,|\r\n|\n|\r|$)/gy;
  pattern.lastIndex = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  while (pattern.lastIndex < text.length) {
    const found = pattern.exec(text);
    if (!found) throw new Error('a quote stands where none can');
    const [, quoted, plain, end] = found;
    fields.push(quoted?.replaceAll('""', '"') ?? plain);
    if (end === ',' && pattern.lastIndex < text.length) continue;
    if (end === ',') fields.push('');
    if (fields.length > 1 || fields[0] !== '') table.push(fields);
    fields = [];
  }
  return table;
}
