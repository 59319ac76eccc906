// The catalogue of a published gallery: rows by id, filtered, counted and described as the server does.

import {Refusal, site, urlOf} from './files.js';
import {parseCondition} from './conditions.js';

const NAME_CHARACTERS = 16;
const MOST_VALUES = 200; // of a column that is a facet
const MOST_SHOWN = 50;
const WORD = /^(?!(?:and|or|not|in|like|between|is|null|true|false)$)[\p{L}_][\p{L}\p{N}\p{M}_-]*$/iu;

const quote = text => `'${text.replaceAll("'", "''")}'`;
const nameColumn = name => (WORD.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
const sortBy = (counts, one, other) => counts.get(other) - counts.get(one) || (String(one) < String(other) ? -1 : 1);

export class Rows {
  /** @param {{ids: number[], images: string, own: string[], values: Record<string, any[]>, groups: number[][]}} catalogue */
  constructor({ids, images, own, values, groups}) {
    this.ids = ids;
    this.own = own;
    this.values = new Map(Object.entries(values));
    this.metadata = [...this.values.keys()].filter(name => !own.includes(name));
    this.images = images;
    this.groups = new Map(groups.flatMap(group => group.map(id => [id, group])));
    this.byId = new Map(ids.map((id, row) => [id, row]));
    /** @type {Map<string, number[]>} */
    this.kept = new Map(); // rows by what filtered them; the last one alone
  }

  /** The row of an image. @param {number} id */
  find(id) {
    const row = this.byId.get(id);
    if (row === undefined) throw new Refusal(`There is no image ${id} in this gallery.`, 404, 'not_found');
    return row;
  }

  /** The address of the image's file, the large one or a thumbnail. @param {number} id */
  imageUrl(id, {large = false} = {}) {
    const row = this.byId.get(id);
    if (row === undefined) return '';
    const name = this.images.slice(row * NAME_CHARACTERS, (row + 1) * NAME_CHARACTERS);
    return urlOf(`images/${name.slice(0, 2)}/${name}-${(large && site.preview) || site.side}.webp`);
  }

  /** The rows that fulfil a condition and have all words of a text; null of all. */
  filter(where, text) {
    if (!where?.trim() && !text?.trim()) return null;
    const key = JSON.stringify([where, text]);
    const known = this.kept.get(key);
    if (known) return known;
    const condition = where?.trim() ? parseCondition(where, name => this.#read(name)) : () => true;
    const words = (text ?? '').toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (let row = 0; row < this.ids.length; row += 1) {
      if (condition(row) === true && (words.length === 0 || this.#hasWords(row, words))) found.push(row);
    }
    this.kept.clear();
    this.kept.set(key, found);
    return found;
  }

  #read(name) {
    const column = this.values.get(name === 'tag' ? 'tags' : name);
    if (name === 'id') return row => this.ids[row];
    if (column) return row => column[row];
    const known = ['id', ...this.values.keys()].map(nameColumn).join(', ');
    throw new Refusal(`There is no column ${name} in this published gallery; it has ${known}.`);
  }

  /** The value by which images are in one group; nothing of those alone. @param {string} name */
  group(name) {
    const read = this.#read(name === 'folder' ? 'path' : name);
    return row => {
      const value = name === 'folder' ? read(row)?.replace(/[^/]*$/, '') : read(row);
      if (value === null || value === '') return undefined;
      return typeof value === 'object' ? JSON.stringify(value) : value;
    };
  }

  /** Rows by a column, those without it last. @param {number[]} list @param {string} order `taken`, or `-taken` for the newest first */
  sort(list, order) {
    const read = this.#read(order.replace(/^-/, ''));
    const sign = order.startsWith('-') ? -1 : 1;
    const place = row => Number((read(row) ?? null) === null);
    return [...list].sort(
      (one, other) =>
        place(one) - place(other) || (read(one) < read(other) ? -sign : Number(read(one) > read(other)) * sign),
    );
  }

  #hasWords(row, words) {
    const texts = [...this.values.values()].map(column => column[row] ?? '');
    const text = texts
      .map(value => (typeof value === 'object' ? JSON.stringify(value) : value))
      .join('\n')
      .toLowerCase();
    return words.every(word => text.includes(word));
  }

  /** What lists and hits say of an image. */
  describe(row) {
    const values = name => this.values.get(name)?.[row] ?? null;
    return {id: this.ids[row], label: values('label'), path: values('path')};
  }

  /** @returns {any} */
  details(id) {
    const row = this.find(id);
    const twin = {label: null, similarity: null, same_bytes: false, indexed: true};
    const duplicates = (this.groups.get(id) ?? []).filter(other => other !== id);
    return {
      ...this.describe(row),
      path: this.#path(row),
      tags: this.values.get('tags')?.[row] ?? [],
      metadata: Object.fromEntries(this.metadata.map(name => [name, this.values.get(name)?.[row]])),
      ...{source: '', measures: {}, size_bytes: null, modified: null, sha256: null, indexed: true},
      ...{dropped: false, set_aside: false, label_issue: null, decision: null},
      duplicates: duplicates.map(other => ({id: other, path: this.#path(this.find(other)), ...twin})),
    };
  }

  #path(row) {
    return this.values.get('path')?.[row] ?? `image ${this.ids[row]}`;
  }

  /** Labels by their frequency. */
  labels() {
    const counts = count((this.values.get('label') ?? []).filter(label => label !== null));
    const names = [...counts.keys()].sort((one, other) => sortBy(counts, one, other));
    return {
      names: names.slice(0, 2000),
      count: names.length,
      labelled: [...counts.values()].reduce((a, b) => a + b, 0),
    };
  }

  /** Counts of the values of every column with few of them. @param {{where?: string, text?: string, facet?: string, find?: string}} given */
  facets({where, text, facet: only, find = ''}) {
    const rows = this.filter(where, text) ?? this.ids.keys();
    const list = [...rows];
    const facets = [];
    for (const [name, column] of this.values) {
      const shown = name === 'tags' ? 'tag' : name;
      const values = name === 'tags' ? list.flatMap(row => column[row]) : list.map(row => column[row] ?? null);
      if (name === 'path' || (only && only !== shown)) continue;
      const length = name === 'taken' ? timeLength(column) : null; // of a year or a month
      if (!length && !this.own.includes(name) && !isFacet(column)) continue;
      const plain = values.filter(value => typeof value !== 'object' || value === null);
      const counts = count(length ? plain.flatMap(value => value?.slice(0, length) ?? []) : plain);
      const wanted = [...counts.keys()]
        .filter(value =>
          String(value ?? '')
            .toLowerCase()
            .includes(find.toLowerCase()),
        )
        .sort((one, other) => (length ? (one < other ? 1 : -1) : sortBy(counts, one, other)));
      if (wanted.length === 0 || (wanted.length === 1 && wanted[0] === null)) continue;
      const describe = value => ({value, count: counts.get(value), where: writeCondition(shown, value, length)});
      const more = Math.max(0, wanted.length - MOST_SHOWN);
      facets.push({name: shown, values: wanted.slice(0, MOST_SHOWN).map(describe), more});
    }
    return {version: '', total: list.length, facets};
  }
}

/** How many characters of times are a facet: their months within two years, else years; null if they are no times. */
function timeLength(column) {
  const times = column.filter(value => value !== null);
  if (!times.every(time => /^\d{4}-[01]\d/.test(time))) return null;
  return new Set(times.map(time => time.slice(0, 4))).size <= 2 ? 7 : 4;
}

function writeCondition(name, value, length) {
  const column = nameColumn(name);
  if (length) return `${column} LIKE ${quote(`${value}%`)}`;
  if (value === null) return `${column} IS NULL`;
  if (typeof value === 'boolean') return `${column} = ${String(value).toUpperCase()}`;
  return `${column} = ${typeof value === 'number' ? value : quote(value)}`;
}

function isFacet(column) {
  const found = new Set();
  for (const value of column) {
    if (typeof value === 'string' && value.length > 300) return false;
    if (found.add(value).size > MOST_VALUES + 1) return false;
  }
  return true;
}

/** @param {any[]} values @returns {Map<any, number>} */
function count(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return counts;
}
