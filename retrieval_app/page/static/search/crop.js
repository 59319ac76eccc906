// A rectangle over an image, the part of it to search with: drawn, moved and sized by mouse, finger or keys.

import {make} from '../core/dom.js';
import {announce} from '../core/toast.js';

const SMALLEST = 0.06;
const KEY_STEP = 0.02;
const WHOLE = {x: 0, y: 0, width: 1, height: 1};
const CORNERS = {nw: [-1, -1], ne: [1, -1], sw: [-1, 1], se: [1, 1]};

/**
 * Lay a crop over an image's frame. `changed(crop or null)` is called at the end of each move; null: all of it.
 * Gives `{set(crop), focus()}`.
 */
export function layCrop(frame, {crop, changed}) {
  let now = crop ?? WHOLE;
  const box = make(
    'div',
    {
      class: 'crop-box',
      tabindex: '0',
      role: 'group',
      'aria-label': 'Part to search with. Arrows move it, Shift and arrows change its size.',
    },
    Object.keys(CORNERS).map(corner => make('span', {class: `crop-handle ${corner}`, dataset: {corner}})),
  );
  const layer = make('div.crop-layer', box);
  frame.append(layer);

  function draw() {
    const sides = {left: now.x, top: now.y, width: now.width, height: now.height};
    for (const [side, share] of Object.entries(sides)) box.style.setProperty(side, `${share * 100}%`);
    layer.classList.toggle('cropped', !isWhole(now));
  }

  function finish() {
    changed(isWhole(now) ? null : now);
  }

  layer.addEventListener('pointerdown', event => {
    const {corner} = /** @type {HTMLElement} */ (event.target).dataset;
    const inside = event.target === box && !isWhole(now);
    const drawing = !corner && !inside;
    if (event.button !== 0 || (drawing && event.pointerType !== 'mouse')) return;
    event.preventDefault();
    box.focus({preventScroll: true});
    const start = {...place(event, layer), crop: now};
    const move = next => {
      const there = place(next, layer);
      now = corner
        ? stretch(start.crop, {corner, x: there.x, y: there.y})
        : inside
          ? shift(start.crop, there.x - start.x, there.y - start.y)
          : between(start, there);
      draw();
    };
    const end = last => {
      layer.removeEventListener('pointermove', move);
      const tiny = drawing && Math.hypot(place(last, layer).x - start.x, place(last, layer).y - start.y) < 0.02;
      if (tiny || last.type === 'pointercancel') now = start.crop; // a click is no rectangle
      draw();
      if (now !== start.crop) finish();
    };
    layer.setPointerCapture(event.pointerId);
    layer.addEventListener('pointermove', move);
    for (const name of ['pointerup', 'pointercancel']) layer.addEventListener(name, end, {once: true});
  });

  let waiting = 0;
  box.addEventListener('keydown', event => {
    const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!steps || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [right, down] = steps.map(step => step * KEY_STEP);
    now = event.shiftKey ? grow(now, right, down) : shift(now, right, down);
    draw();
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      announce(
        `From ${round(now.x)} to ${round(now.x + now.width)} % across,`
          + ` ${round(now.y)} to ${round(now.y + now.height)} % down`,
      );
      finish();
    }, 500);
  });

  draw();
  return {
    set(next) {
      now = next ?? WHOLE;
      draw();
    },
    focus: () => box.focus(),
  };
}

function place(event, layer) {
  const area = layer.getBoundingClientRect();
  return {x: limit((event.clientX - area.left) / area.width), y: limit((event.clientY - area.top) / area.height)};
}

function stretch({x, y, width, height}, {corner, x: toX, y: toY}) {
  const [across, down] = CORNERS[corner];
  const left = across < 0 ? Math.min(toX, x + width - SMALLEST) : x;
  const top = down < 0 ? Math.min(toY, y + height - SMALLEST) : y;
  const right = across > 0 ? Math.max(toX, x + SMALLEST) : x + width;
  const bottom = down > 0 ? Math.max(toY, y + SMALLEST) : y + height;
  return {x: left, y: top, width: right - left, height: bottom - top};
}

function shift(crop, right, down) {
  return {...crop, x: limit(crop.x + right, 1 - crop.width), y: limit(crop.y + down, 1 - crop.height)};
}

function grow(crop, right, down) {
  const width = Math.max(SMALLEST, limit(crop.width + right));
  const height = Math.max(SMALLEST, limit(crop.height + down));
  return {x: Math.min(crop.x, 1 - width), y: Math.min(crop.y, 1 - height), width, height};
}

function between(one, other) {
  const width = Math.max(SMALLEST, Math.abs(one.x - other.x));
  const height = Math.max(SMALLEST, Math.abs(one.y - other.y));
  return {x: Math.min(one.x, other.x, 1 - width), y: Math.min(one.y, other.y, 1 - height), width, height};
}

const isWhole = ({width, height}) => width > 0.995 && height > 0.995;

const limit = (value, most = 1) => Math.max(0, Math.min(most, value));

const round = share => Math.round(share * 100);
