// Conditions such as `label = 'a' AND price < 20`: the language of `index/filters/parser.py`, evaluated on rows.

import {Refusal} from './files.js';

/** @typedef {(row: number) => boolean | null} Condition null where a value is missing */
/** @typedef {{kind: 'number' | 'text' | 'truth', value: any}} Constant */

const TOKEN =
  /\s*(?:(?<date>\d{4}-\d{2}(?:-\d{2})?(?![\w.+-]))|(?<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?![\w.+-]))|(?<word>[\p{L}_][\p{L}\p{N}\p{M}_-]*)|(?<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?<sign><=|>=|<>|!=|==|[=<>(),.])|(?<end>$))/iuy;
const NUMBER = /^\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?\s*$/i;
const WORDS = new Set('AND OR NOT IN LIKE BETWEEN IS NULL TRUE FALSE'.split(' '));
const SIGNS = {'=': '=', '==': '=', '!=': '!=', '<>': '!=', '<': '<', '<=': '<=', '>': '>', '>=': '>='};

/**
 * The condition that a text says. `read(name)` gives a column as a function of the row; a list is that of tags.
 *
 * @param {string} text
 * @param {(name: string) => (row: number) => any} read
 * @returns {Condition}
 */
export function parseCondition(text, read) {
  const tokens = readTokens(text);
  let at = 0;
  const refuse = wanted =>
    new Refusal(`The condition cannot be read at \u201c${tokens[at].text || 'its end'}\u201d: expected ${wanted}.`);
  const take = (...words) => (words.includes(tokens[at].reserved) ? tokens[at++].reserved : null);
  const expect = (word, wanted = word) => {
    if (!take(word)) throw refuse(wanted);
  };

  function any() {
    const parts = [all()];
    while (take('OR')) parts.push(all());
    return parts.length === 1 ? parts[0] : row => join(parts, row, true);
  }

  function all() {
    const parts = [one()];
    while (take('AND')) parts.push(one());
    return parts.length === 1 ? parts[0] : row => join(parts, row, false);
  }

  /** @returns {Condition} */
  function one() {
    const opened = take('NOT', '(');
    if (!opened) return comparison();
    const part = opened === 'NOT' ? not(one()) : any();
    if (opened === '(') expect(')', 'AND, OR or )');
    return part;
  }

  /** @returns {Condition} */
  function comparison() {
    const column = read(name());
    const sign = SIGNS[tokens[at].reserved];
    if (sign) {
      at += 1;
      return compare(column, sign, constant());
    }
    if (take('IS')) {
      const isNegated = take('NOT');
      expect('NULL');
      return row => isMissing(column(row)) !== Boolean(isNegated);
    }
    const isNegated = take('NOT');
    const found = among(column);
    return isNegated ? not(found) : found;
  }

  /** @returns {Condition} */
  function among(column) {
    if (take('IN')) {
      expect('(');
      const constants = [constant()];
      while (take(',')) constants.push(constant());
      expect(')', ', or )');
      if (constants.every(({kind}) => kind === 'number')) return inNumbers(column, constants);
      const parts = constants.map(value => compare(column, '=', value));
      return row => join(parts, row, true);
    }
    if (take('LIKE')) return like(column, constant());
    if (take('BETWEEN')) {
      const least = compare(column, '>=', constant());
      expect('AND');
      const most = compare(column, '<=', constant());
      return row => join([least, most], row, false);
    }
    throw refuse('a comparison: =, !=, <, <=, >, >=, IN, LIKE, BETWEEN or IS NULL');
  }

  function name() {
    const names = [];
    do {
      const {kind, value, reserved} = tokens[at];
      if ((kind !== 'word' && tokens[at].text[0] !== '"') || reserved) throw refuse('the name of a column');
      names.push(value);
      at += 1;
    } while (take('.'));
    return names.length > 1 && names[0] === 'metadata' ? names.slice(1).join('.') : names.join('.');
  }

  /** @returns {Constant} */
  function constant() {
    const {kind, value, reserved} = tokens[at];
    const isTruth = reserved === 'TRUE' || reserved === 'FALSE';
    const isValue = isTruth || ['number', 'date', 'quoted'].includes(kind);
    if (!isValue) throw refuse("a number, a date, 'text', TRUE or FALSE");
    at += 1;
    if (isTruth) return {kind: 'truth', value: Number(reserved === 'TRUE')};
    return kind === 'number' ? {kind, value: Number(value)} : {kind: 'text', value};
  }

  const condition = any();
  if (tokens[at].kind !== 'end') throw refuse('AND, OR or the end');
  return condition;
}

/** @param {string} text */
function readTokens(text) {
  const tokens = [];
  for (TOKEN.lastIndex = 0; tokens.at(-1)?.kind !== 'end';) {
    const start = TOKEN.lastIndex;
    const groups = TOKEN.exec(text)?.groups;
    if (!groups) throw new Refusal(`The condition cannot be read at \u201c${text.slice(start, start + 30)}\u201d.`);
    const [kind, found] = Object.entries(groups).find(([, value]) => value !== undefined) ?? ['end', ''];
    const value = kind === 'quoted' ? found.slice(1, -1).replaceAll(found[0].repeat(2), found[0]) : found;
    const word = found.toUpperCase();
    const reserved = kind === 'sign' ? found : kind === 'word' && WORDS.has(word) ? word : '';
    tokens.push({kind, text: found, value, reserved});
  }
  return tokens;
}

/** Three-valued AND, or OR. @param {Condition[]} parts */
function join(parts, row, isOr) {
  let found = /** @type {boolean | null} */ (!isOr);
  for (const part of parts) {
    const one = part(row);
    if (one === isOr) return isOr;
    if (one === null) found = null;
  }
  return found;
}

/** @param {Condition} part @returns {Condition} */
const not = part => row => {
  const found = part(row);
  return found === null ? null : !found;
};

const isMissing = value => value === null || value === undefined || (Array.isArray(value) && value.length === 0);

/** @returns {Condition} */
function inNumbers(column, constants) {
  const wanted = new Set(constants.map(({value}) => value));
  return row => {
    const value = column(row);
    if (Array.isArray(value)) return value.some(one => wanted.has(asNumber(one)));
    return value === null || value === undefined ? null : wanted.has(asNumber(value));
  };
}

/** @param {Constant} constant @returns {Condition} */
function compare(column, sign, constant) {
  return row => {
    const value = column(row);
    if (!Array.isArray(value)) return value === null || value === undefined ? null : fulfils(value, sign, constant);
    if (sign === '!=') return !value.some(one => fulfils(one, '=', constant));
    return value.some(one => fulfils(one, sign, constant));
  };
}

const asNumber = value => {
  if (typeof value === 'boolean') return Number(value);
  return typeof value === 'string' && NUMBER.test(value) ? Number(value) : value;
};

function fulfils(stored, sign, {kind, value: wanted}) {
  let value = typeof stored === 'object' ? JSON.stringify(stored) : stored;
  if (kind === 'truth') {
    if (typeof value === 'string' && /^(true|false)$/i.test(value)) value = value.toLowerCase() === 'true';
    return (asNumber(value) === wanted) === (sign === '=');
  }
  if (kind === 'number' || typeof value !== 'string') [value, wanted] = [asNumber(value), asNumber(wanted)];
  if (typeof value !== typeof wanted) return sign === '=' ? false : sign === '!=' ? true : null;
  if (sign === '=' || sign === '!=') return (value === wanted) === (sign === '=');
  return sign === '<'
    ? value < wanted
    : sign === '<='
      ? value <= wanted
      : sign === '>'
        ? value > wanted
        : value >= wanted;
}

/** @returns {Condition} */
function like(column, {value: pattern}) {
  const escaped = String(pattern).replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
  const wanted = new RegExp(`^${escaped.replaceAll('%', '[^]*').replaceAll('_', '[^]')}$`, 'iu');
  return row => {
    const value = column(row);
    if (value === null || value === undefined) return null;
    const texts = Array.isArray(value) ? value : [typeof value === 'object' ? JSON.stringify(value) : value];
    return texts.some(text => wanted.test(String(text)));
  };
}
