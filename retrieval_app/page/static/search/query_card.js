// What is searched with: every image of the query and its words, with sign and crop; the chosen one is shown large.

import {button, icon, make, refill, shownText} from '../core/dom.js';
import {get} from '../core/api.js';
import {layCrop} from './crop.js';
import {photoThumb, thumb} from '../core/thumbs.js';
import {makeDrop, photoName} from './upload.js';
import {partKey} from '../core/url_state.js';

const LARGE_SIDE = 512;

/**
 * The card. `changed(parts)` is called with the new parts, `add(tokens)` with further photos, `open(id)` for details,
 * `labelled(label or null)` with the label of the query, if its images have one and the same.
 */
export function makeQueryCard({changed, add, open, labelled}) {
  const element = make('section', {class: 'query panel', 'aria-label': 'Query', hidden: true});
  /** @type {Part[]} */
  let parts = [];
  let chosen = null; // the key of the part shown large
  let drawn = '';
  const facts = new Map(); // id -> {label, path}

  const change = (key, part) => changed(parts.map(entry => (partKey(entry) === key ? {...entry, ...part} : entry)));
  const drop = key => changed(parts.filter(part => partKey(part) !== key));

  function draw() {
    const part = parts.find(entry => partKey(entry) === chosen) ?? parts[0];
    chosen = partKey(part);
    refill(element, [
      make('div.query-head', [
        make('h2.kicker', 'Searching with'),
        button('Clear', {class: 'quiet small push', title: 'Start over'}, () => {
          const view = element.closest('.view');
          changed([]);
          view?.focus({preventScroll: true});
        }),
      ]),
      make(`div.query-body${part.image === undefined ? '' : '.of-image'}`, drawLarge(part), drawFacts(part)),
      parts.length > 1
        && make('ul', {class: 'query-parts', 'aria-label': 'All parts of the query'}, parts.map(drawSmall)),
      makeDrop({title: 'Add a photo', small: true, sent: add}),
    ]);
    parts.forEach(look);
  }

  function drawLarge(part) {
    if (part.words !== undefined) return make('p.query-words', `\u201c${shownText(part.words)}\u201d`);
    const image =
      part.image !== undefined
        ? thumb(part.image, {side: LARGE_SIDE, eager: true, alt: titleOf(part)})
        : photoThumb(part.photo, {alt: titleOf(part)});
    const frame = make('div.query-picture', image);
    layCrop(frame, {crop: part.crop, changed: crop => change(partKey(part), {crop})});
    return make('div.query-large', frame);
  }

  function drawFacts(part) {
    const key = partKey(part);
    const known = facts.get(part.image);
    return make('div.query-facts', [
      part.words === undefined
        && make('div.row', [
          known?.label && make('span.chip', make('span', shownText(known.label))),
          make('span', {class: 'clip small soft grow', title: titleOf(part)}, make('bdi', titleOf(part))),
        ]),
      part.words === undefined
        && (part.crop
          ? button('Reset crop', {icon: 'crop', class: 'small'}, () => change(key, {crop: null}))
          : make('p.small.soft.hint', [
              icon('crop', 15),
              matchMedia('(hover: none)').matches
                ? 'Drag the corners to search with a part of it'
                : 'Drag over the image, or its corners, to search with a part of it',
            ])),
      parts.length > 1 && drawSign(part),
      part.image !== undefined && button('Details', {icon: 'info', class: 'quiet small'}, () => open(part.image)),
    ]);
  }

  function drawSign(part) {
    const key = partKey(part);
    const last = part.role !== 'less' && parts.filter(entry => entry.role !== 'less').length === 1;
    const sign = (text, name, less) =>
      button(text, {
        icon: name,
        class: 'small',
        'aria-pressed': String((part.role === 'less') === less),
        disabled: less && last,
        title: less && last ? 'One at least must be looked for' : null,
        onclick: () => (part.role === 'less') !== less && change(key, {role: less ? 'less' : 'more'}),
      });
    return make('div', {class: 'segments', role: 'group', 'aria-label': 'How it counts'}, [
      sign('More like', 'plus', false),
      sign('Less like', 'minus', true),
    ]);
  }

  function drawSmall(part) {
    const key = partKey(part);
    const less = part.role === 'less';
    const words = `${less ? 'Less' : 'More'} like ${titleOf(part)}${part.crop ? ', a part of it' : ''}`;
    const pressed = {'aria-pressed': String(key === chosen)};
    const remove = {icon: 'close', iconOnly: true, class: 'small query-remove', title: 'Remove'};
    const choose = () => {
      chosen = key;
      draw();
      element.querySelector('.query-choose[aria-pressed="true"]')?.focus();
    };
    return make('li', {class: `query-part${less ? ' less' : ''}`, dataset: {part: key}}, [
      make('button', {class: 'query-choose', title: words, 'aria-label': words, ...pressed, onclick: choose}, [
        drawThumb(part),
        make('span.query-sign', icon(less ? 'minus' : 'plus', 13)),
        part.crop && make('span.query-cropped', icon('crop', 12)),
      ]),
      button(`Remove ${titleOf(part)}`, {...remove, onclick: () => drop(key)}),
    ]);
  }

  function drawThumb(part) {
    if (part.words !== undefined) return make('span.query-words', shownText(part.words));
    return part.image !== undefined ? thumb(part.image, {side: 128, eager: true}) : photoThumb(part.photo);
  }

  function titleOf(part) {
    if (part.words !== undefined) return `\u201c${shownText(part.words)}\u201d`;
    if (part.image === undefined) return shownText(photoName(part.photo) ?? 'Your photo');
    return shownText(facts.get(part.image)?.path ?? `image ${part.image}`);
  }

  async function look(part) {
    if (part.image === undefined || facts.has(part.image)) return;
    facts.set(part.image, null); // asked for once
    const known = await get(`images/${part.image}`).catch(() => null);
    if (!known) return;
    facts.set(part.image, {label: known.label, path: known.path});
    const key = partKey(part);
    const now = parts.find(entry => partKey(entry) === key);
    if (!now) return;
    if (chosen === key) element.querySelector('.query-facts')?.replaceWith(drawFacts(now));
    element.querySelector(`[data-part="${key}"]`)?.replaceWith(drawSmall(now));
    tellLabel();
  }

  function tellLabel() {
    const labels = new Set(
      parts.filter(part => part.role !== 'less').map(part => facts.get(part.image)?.label ?? null),
    );
    labelled(labels.size === 1 ? [...labels][0] : null);
  }

  return {
    element,
    update(state) {
      const next = JSON.stringify(state.parts);
      if (next === drawn) return;
      const added = state.parts.filter(part => !parts.some(entry => partKey(entry) === partKey(part)));
      if (added.length > 0) chosen = partKey(parts.length === 0 ? state.parts[0] : added.at(-1));
      [drawn, parts] = [next, state.parts];
      element.hidden = parts.length === 0;
      const cropping = element.querySelector('.crop-box') === document.activeElement;
      if (parts.length > 0) draw();
      else refill(element);
      tellLabel();
      if (cropping) element.querySelector('.crop-box')?.focus({preventScroll: true});
    },
  };
}
