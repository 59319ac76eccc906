// Canvas of the map: draws points, zooms and selects. Independent of labels, requests and the page.

import {listenToPointers} from './map_pointers.js';

const THUMBS_SHOWN = 150; // most points in view that are drawn as images
const THUMBS_KEPT = 600;
const MOST_ZOOM = 400;
const MARGIN = 28;
const NEAR = 12; // pixels from the pointer to a hovered point
const FINGER = 24;

/**
 * Draw points, and report hovered and chosen ones.
 *
 * points: {x, y} arrays in 0..1. show: {colour(i) -> css, thumb(i) -> address, isOn(i), isMarked(i), captions() -> [{x, y, text}]}.
 * on: {hover(i | -1, position), pick(i, touch), lasso([i]), move(view | null)}; positions are pixels on the canvas.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {{x: number[], y: number[]}} points
 */
export function drawMap(canvas, points, show, on) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  const pictures = new Map();
  const [left, right] = reachOf(points.x);
  const [top, bottom] = reachOf(points.y);
  const middle = [(left + right) / 2, (top + bottom) / 2];
  const extent = [Math.max(right - left, 0.01), Math.max(bottom - top, 0.01)];
  let width = 0;
  let height = 0;
  let base = 1;
  let zoom = 1;
  let centre = [...middle];
  let frame = 0;
  let hovered = -1;
  let lasso = null;
  let lassoMode = false;
  let inView = [];
  let order = [];
  let colours = [];
  let dot = '#888';
  let face = '#fff';
  let line = '#4f46e5';
  let ink = '#000';

  const scale = () => base * zoom;
  /** @returns {[number, number]} */
  const place = ({x, y}) => [(x - centre[0]) * scale() + width / 2, (y - centre[1]) * scale() + height / 2];
  const toScreen = i => place({x: points.x[i], y: points.y[i]});
  /** @param {number[]} at */
  const toMap = ([x, y]) => [(x - width / 2) / scale() + centre[0], (y - height / 2) / scale() + centre[1]];

  // Read the colours again after a change of the theme or of the shown points; points that are off lie below the others.
  function refresh() {
    const style = getComputedStyle(canvas);
    dot = style.getPropertyValue('--point-off').trim() || dot;
    face = style.getPropertyValue('--card').trim() || face;
    line = style.getPropertyValue('--accent').trim() || line;
    ink = style.getPropertyValue('--ink').trim() || ink;
    colours = Array.from(points.x, (_, i) => (show.isOn(i) ? show.colour(i) : dot));
    order = Array.from(points.x, (_, i) => i);
    const weight = i => (show.isMarked(i) ? 2 : show.isOn(i) ? 1 : 0);
    order.sort((a, b) => weight(a) - weight(b));
    redraw();
  }
  const redraw = () => {
    frame ||= requestAnimationFrame(draw);
  };

  function draw() {
    frame = 0;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    inView = order.filter(i => {
      const [x, y] = toScreen(i);
      return x > -40 && y > -40 && x < width + 40 && y < height + 40;
    });
    const asPictures = isClose();
    const side = Math.max(40, Math.min(104, Math.sqrt((width * height) / Math.max(1, inView.length)) * 0.55));
    const radius = Math.min(7, 2.4 + 1.1 * Math.log2(zoom));
    for (const i of inView) if (!asPictures || !drawPreview(i, side)) drawDot(i, radius);
    if (!asPictures) drawCaptions();
    if (hovered >= 0) drawRing(hovered, asPictures && isReady(hovered) ? sizeOf(hovered, side) : null, radius + 4);
    if (lasso) drawLasso();
    if (canvas.matches(':focus-visible')) drawCross();
  }
  const isClose = () => inView.length <= THUMBS_SHOWN && zoom > 1.5;
  function drawDot(i, radius) {
    const [x, y] = toScreen(i);
    context.globalAlpha = show.isOn(i) ? 0.85 : 0.35;
    context.fillStyle = colours[i];
    context.beginPath();
    context.arc(x, y, show.isMarked(i) ? radius + 1.5 : radius, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = 1;
  }
  function drawPreview(i, side) {
    if (!show.isOn(i)) return false;
    const picture = fetchPicture(i);
    if (!isReady(i)) return false;
    const [w, h] = sizeOf(i, side);
    const [x, y] = toScreen(i);
    context.fillStyle = colours[i];
    context.beginPath();
    context.roundRect(x - w / 2 - 3, y - h / 2 - 3, w + 6, h + 6, 7);
    context.fill();
    context.drawImage(picture, x - w / 2, y - h / 2, w, h);
    return true;
  }
  function sizeOf(i, side) {
    const {naturalWidth, naturalHeight} = pictures.get(i);
    const fit = side / Math.max(naturalWidth, naturalHeight);
    return [naturalWidth * fit, naturalHeight * fit];
  }
  // Names over their crowds; one that would lie on an earlier, larger one is left out until the zoom parts them.
  function drawCaptions() {
    const drawn = [];
    const font = '650 13px system-ui, sans-serif';
    Object.assign(context, {font, textAlign: 'center', lineJoin: 'round', lineWidth: 4});
    for (const caption of show.captions()) {
      const [amid, y] = place(caption);
      const reach = context.measureText(caption.text).width / 2 + 3;
      if (amid < 0 || amid > width || y < 0 || y > height) continue;
      const x = Math.max(reach, Math.min(width - reach, amid)); // whole, at the edge too
      if (drawn.some(other => Math.abs(other.x - x) < other.reach + reach && Math.abs(other.y - y) < 17)) continue;
      drawn.push({x, y, reach});
      context.strokeStyle = face;
      context.strokeText(caption.text, x, y);
      context.fillStyle = ink;
      context.fillText(caption.text, x, y);
    }
  }
  function fetchPicture(i) {
    if (!pictures.has(i)) {
      if (pictures.size >= THUMBS_KEPT) pictures.delete(pictures.keys().next().value);
      const picture = new Image();
      picture.onload = redraw;
      picture.src = show.thumb(i);
      pictures.set(i, picture);
    }
    return pictures.get(i);
  }
  const isReady = i => pictures.has(i) && pictures.get(i).complete && pictures.get(i).naturalWidth > 0;
  function drawRing(i, size, radius) {
    const [x, y] = toScreen(i);
    context.beginPath();
    if (size) context.roundRect(x - size[0] / 2 - 4, y - size[1] / 2 - 4, size[0] + 8, size[1] + 8, 8);
    else context.arc(x, y, radius, 0, 2 * Math.PI);
    context.lineWidth = 5;
    context.strokeStyle = face;
    context.stroke();
    context.lineWidth = 2;
    context.strokeStyle = line;
    context.stroke();
  }
  function drawLasso() {
    context.lineWidth = 2;
    context.strokeStyle = line;
    context.setLineDash([6, 4]);
    context.beginPath();
    lasso.forEach(([x, y], n) => (n ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 0.12;
    context.fillStyle = line;
    context.fill();
    context.globalAlpha = 1;
  }
  function drawCross() {
    context.lineWidth = 1.5;
    context.strokeStyle = line;
    context.stroke(new Path2D(`M${width / 2 - 9} ${height / 2}h18m-9 -9v18`));
  }

  function resize() {
    const box = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    if (!box.width || !box.height) return;
    [width, height] = [box.width, box.height];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    base = Math.min((width - 2 * MARGIN) / extent[0], (height - 2 * MARGIN) / extent[1]);
    redraw();
  }
  function moved() {
    redraw();
    on.move({x: centre[0], y: centre[1], zoom});
  }
  /** @param {number} factor @param {[number, number]} at */
  function zoomBy(factor, at = [width / 2, height / 2]) {
    const before = toMap(at);
    zoom = Math.max(0.6, Math.min(MOST_ZOOM, zoom * factor));
    const after = toMap(at);
    centre = [centre[0] + before[0] - after[0], centre[1] + before[1] - after[1]];
    moved();
  }
  function panBy(x, y) {
    const bound = value => Math.max(-0.25, Math.min(1.25, value));
    centre = [bound(centre[0] - x / scale()), bound(centre[1] - y / scale())];
    moved();
  }
  function goTo(view) {
    centre = view ? [view.x, view.y] : [...middle];
    zoom = view ? view.zoom : 1;
    moved();
  }

  /** @param {number[]} at @param {number} distance */
  function findNear([x, y], distance) {
    let best = -1;
    let least = distance * distance;
    for (let n = inView.length - 1; n >= 0; n--) {
      const i = inView[n];
      if (!show.isOn(i)) continue;
      const [px, py] = toScreen(i);
      const squared = (px - x) ** 2 + (py - y) ** 2;
      if (squared < least) {
        best = i;
        least = squared;
      }
    }
    return best;
  }

  const findInside = polygon => order.filter(i => show.isOn(i) && isInside(toScreen(i), polygon)).sort((a, b) => a - b);
  const reach = () => (isClose() ? 2.5 * NEAR : NEAR);
  const pointers = listenToPointers(canvas, {
    zoomBy,
    panBy,
    isLasso: () => lassoMode,
    pointAt: at => pointAt(at ? findNear(at, reach()) : -1, at),
    pick(at, touch) {
      const found = findNear(at, touch ? FINGER : reach());
      if (touch) pointAt(found, at);
      on.pick(found, touch);
    },
    draw(polygon) {
      lasso = polygon;
      redraw();
    },
    close: polygon => on.lasso(findInside(polygon)),
  });
  canvas.addEventListener('focus', redraw);
  canvas.addEventListener('blur', redraw);
  function pointAt(i, position) {
    canvas.style.cursor = lassoMode ? 'crosshair' : i >= 0 ? 'pointer' : 'grab';
    if (i === hovered && i < 0) return;
    hovered = i;
    on.hover(i, position);
    redraw();
  }

  new ResizeObserver(() => {
    resize();
    on.move(null);
  }).observe(canvas);
  resize();
  refresh();
  return {
    refresh,
    zoomBy,
    panBy,
    goTo,
    pointAt,
    get inView() {
      return inView.filter(i => {
        const [x, y] = toScreen(i);
        return x >= 0 && y >= 0 && x < width && y < height;
      });
    },
    get atCentre() {
      return findNear([width / 2, height / 2], Infinity);
    },
    setLasso(enabled) {
      lassoMode = enabled;
      canvas.style.cursor = enabled ? 'crosshair' : 'grab';
    },
    get busy() {
      return lasso !== null;
    },
    cancel: pointers.cancel,
  };
}

const reachOf = values => [
  values.reduce((low, value) => Math.min(low, value), Infinity),
  values.reduce((high, value) => Math.max(high, value), -Infinity),
];

function isInside([x, y], polygon) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i];
    const [xj, yj] = polygon[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
