// Elements are made from tags, properties and text nodes: no text of a gallery ever becomes markup.

import {icon} from './icons.js';

export {icon};

/**
 * Element: `make('a.chip', {href: '?', onclick: f}, 'text', node, [more])`. Classes follow the tag; the properties may be
 * omitted. `class`, `dataset` and `style` (objects) and `onNAME` functions are set as such; other properties are
 * attributes: true means present, and false, null or undefined absent. Children that are null, undefined or false are
 * left out. A button does not submit a form unless its `type` says so.
 *
 * @template {string} Tag
 * @param {Tag} tag
 * @param {...(Props | Child)} given
 * @returns {ElementOf<Tag>}
 */
export function make(tag, ...given) {
  const [name, ...classes] = tag.split('.');
  const element = document.createElement(name);
  if (name === 'button') element.setAttribute('type', 'button');
  if (classes.length) element.className = classes.join(' ');
  const [first] = given;
  const hasProperties =
    typeof first === 'object' && first !== null && !(first instanceof Node) && !Array.isArray(first);
  if (hasProperties) for (const [key, value] of Object.entries(first)) setProperty(element, key, value);
  fill(element, /** @type {Child[]} */ (hasProperties ? given.slice(1) : given));
  return /** @type {any} */ (element);
}

function setProperty(element, name, value) {
  if (name === 'class') {
    element.className = `${element.className} ${value ?? ''}`.trim();
  } else if (name === 'dataset') {
    Object.assign(element.dataset, value);
  } else if (name === 'style') {
    for (const [key, entry] of Object.entries(value)) element.style.setProperty(key, entry);
  } else if (typeof value === 'function') {
    element.addEventListener(name.replace(/^on/, ''), value);
  } else if (value !== null && value !== undefined && value !== false) {
    element.setAttribute(name, value === true ? '' : String(value));
  }
}

/** @param {Element} element @param {Child[]} children */
function fill(element, children) {
  for (const child of /** @type {any[]} */ (children).flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/**
 * First element within `place` that matches; it must exist.
 *
 * @param {ParentNode} place
 * @param {string} selector
 */
export function find(place, selector) {
  const element = place.querySelector(selector);
  if (!element) throw new Error(`there is no ${selector}`);
  return element;
}

/**
 * Replace the children of an element; null, undefined and false are left out.
 *
 * @template {Element} Place
 * @param {Place} element
 * @param {...Child} children
 */
export function refill(element, ...children) {
  element.replaceChildren();
  fill(element, children);
  return element;
}

/**
 * A button with an icon and, unless it is hidden, its text: `button('Clear', {icon: 'close', class: 'quiet'}, f)`.
 *
 * @param {string} text
 * @param {ButtonProps} props
 * @param {((event: MouseEvent) => void) | null} run
 */
export function button(text, {icon: drawing = null, iconOnly = false, class: name = '', ...props} = {}, run = null) {
  const named = iconOnly && {'aria-label': text, title: text};
  const given = {
    class: `button${iconOnly ? ' icon-button' : ''} ${name}`,
    ...named,
    ...props,
    ...(run && {onclick: run}),
  };
  return make('button', given, drawing && icon(drawing), !iconOnly && text);
}

/** The same, where the focus stays on the button that stands where the one that had it stood. */
export function refillKeepingFocus(element, ...children) {
  const place = [...element.querySelectorAll('button')].indexOf(/** @type {any} */ (document.activeElement));
  refill(element, ...children);
  const buttons = element.querySelectorAll('button');
  if (place >= 0) buttons[Math.min(place, buttons.length - 1)]?.focus({preventScroll: true});
}

/** Text as it can be shown: characters that are invisible or turn the writing round are spelled out. */
export function shownText(text) {
  return String(text ?? '').replace(
    /[\p{Cc}\p{Cs}\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu,
    character => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Text as children of an element, where a line may break behind the marks between words: `029.American_Crow`. */
export const shownName = text =>
  shownText(text)
    .split(/(?<=[^_./-][_./-])(?=[^_./-])/)
    .flatMap((part, place) => (place ? [make('wbr'), part] : [part]));

/** A message of the server as a sentence of the page: with a capital, unless it begins with a name such as `a.jpg:`. */
export function sentence(text) {
  return /^[a-z]+['\u2019]?[a-z]*[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

/** "1 image", "5,398 images". @param {number} number */
export function count(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? noun : nouns}`;
}

/** A cosine as text, never as -0. @type {(score: number, digits?: number) => string} */
export const shownScore = (score, digits = 2) => (Number(score.toFixed(digits)) + 0).toFixed(digits);

/** "87 %" of 0.87; never a rounded 100 % or 0 % of something that is neither. @param {number} share */
export function percent(share) {
  if (share > 0 && share < 0.005) return '<\u00a01\u00a0%';
  if (share < 1 && share >= 0.995) return '>\u00a099\u00a0%';
  return `${Math.round(share * 100)}\u00a0%`;
}

/** "1.2 MB". @param {number} bytes */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let size = bytes / 1000;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** A function that runs once calls have ceased for `milliseconds`; `.cancel()` forgets a waiting one. */
export function debounce(run, milliseconds) {
  let timer = 0;
  const waiting = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
  waiting.cancel = () => clearTimeout(timer);
  return waiting;
}

/** Have the browser save a file. @param {Blob} content @param {string} name */
export function saveFile(content, name) {
  const link = make('a', {href: URL.createObjectURL(content), download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
