// The theme of a page: what its visitor chose before, or else what their system has.

import {button, icon, refill} from './dom.js';
import {keep, readKept} from './kept.js';

const THEME = 'theme';

/** Show the page in it. */
export function applySavedTheme() {
  applyTheme(savedTheme());
}

/** The button that changes it. */
export function themeButton() {
  const toggle = button('Dark theme', {iconOnly: true, icon: 'moon', class: 'quiet'});
  const draw = () => {
    const dark = isDark();
    const text = dark ? 'Light theme' : 'Dark theme';
    refill(toggle, icon(dark ? 'sun' : 'moon'));
    toggle.setAttribute('aria-label', text);
    toggle.title = text;
  };
  toggle.addEventListener('click', () => {
    const theme = isDark() ? 'light' : 'dark';
    keep(THEME, theme);
    applyTheme(theme);
    draw();
    dispatchEvent(new CustomEvent('themechange', {detail: theme})); // for what is drawn on a canvas
  });
  draw();
  return toggle;
}

const isDark = () => document.body.classList.contains('dark');

function savedTheme() {
  return readKept(THEME) ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

function applyTheme(theme) {
  document.body.classList.toggle('dark', theme === 'dark');
  document.documentElement.style.colorScheme = theme; // for what the browser draws: scroll bars, sliders, lists to choose from
}
