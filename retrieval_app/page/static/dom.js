// Elements are made from tags, properties and text nodes: no text of a gallery ever becomes markup.

import {icon} from './icons.js';

export {icon};

/**
 * An element: `make('a', {class: 'chip', href: '?', onclick: f}, 'text', node, [more])`.
 * Properties: `class`, `dataset` and `style` (objects), `onNAME` functions; others are attributes, where true means
 * present and false, null or undefined absent. Children that are null, undefined or false are left out.
 */
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) setProperty(element, name, value);
  fill(element, children);
  return element;
}

function setProperty(element, name, value) {
  if (name === 'class') {
    element.className = value ?? '';
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

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** New children in place of the old ones; null, undefined and false are left out. */
export function refill(element, ...children) {
  element.replaceChildren();
  fill(element, children);
  return element;
}

/** A button with an icon and, unless it is hidden, its text: `button('Clear', {icon: 'close', class: 'quiet'}, f)`. */
export function button(text, {icon: drawing = null, iconOnly = false, class: name = '', ...props} = {}, run = null) {
  const classes = ['button', iconOnly ? 'icon-button' : '', name].filter(Boolean).join(' ');
  const given = {type: 'button', class: classes, ...props};
  if (iconOnly) Object.assign(given, {'aria-label': text, title: props.title ?? text});
  if (run) given.onclick = run;
  return make('button', given, drawing && icon(drawing), !iconOnly && text);
}

/** Text as it can be shown: characters that are invisible or turn the writing round are spelled out. */
export function shownText(text) {
  return String(text ?? '').replace(
    /[\p{Cc}\p{Cs}\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu,
    character => `\\u${character.codePointAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** A message of the server as a sentence of the page: with a capital, unless it begins with a name such as `a.jpg:`. */
export function sentence(text) {
  return /^[a-z]+['\u2019]?[a-z]*[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

/** "1 image", "5,398 images". */
export function count(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? noun : nouns}`;
}

/** "87 %" of 0.87; never a rounded 100 % or 0 % of something that is neither. */
export function percent(share) {
  if (share > 0 && share < 0.005) return '<\u00a01\u00a0%';
  if (share < 1 && share >= 0.995) return '>\u00a099\u00a0%';
  return `${Math.round(share * 100)}\u00a0%`;
}

/** "1.2 MB". */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let size = bytes / 1000,
    unit = 0;
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
