// What mouse, pen and fingers do on the map: drag, wheel and pinch, a click, and an area: a line drawn round points, or
// a rectangle, where the line is about straight.

const CLICK = 5; // pixels that a pointer may wander during a click
const FLAT = 0.25; // a line that surrounds less of its rectangle than this share goes from corner to corner

/**
 * Listen on the canvas. act: {isLasso(), pointAt(at | null), pick(at, touch), panBy(x, y), zoomBy(factor, at),
 * draw(polygon | null), close(polygon)}; places are pixels on the canvas. Gives `cancel()`, which forgets the line.
 */
export function listenToPointers(canvas, act) {
  const pointers = new Map();
  let travelled = 0;
  let lasso = null;
  const place = event => [event.offsetX, event.offsetY];

  function press(event) {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    travelled = 0;
    lasso = pointers.size === 1 && (act.isLasso() || event.shiftKey) ? [place(event)] : null;
  }
  function move(event) {
    const here = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === 'mouse') act.pointAt(here);
      return;
    }
    travelled += Math.hypot(here[0] - before[0], here[1] - before[1]);
    if (pointers.size === 2) {
      pinch(event.pointerId, here);
    } else if (lasso) {
      lasso.push(here);
      act.draw(areaOf(lasso));
    } else if (travelled > CLICK) {
      act.pointAt(null);
      act.panBy(here[0] - before[0], here[1] - before[1]);
    }
    pointers.set(event.pointerId, here);
  }
  function pinch(id, here) {
    const [other] = [...pointers].filter(([key]) => key !== id).map(([, position]) => position);
    const before = pointers.get(id);
    const apart = position => Math.hypot(position[0] - other[0], position[1] - other[1]);
    act.panBy((here[0] - before[0]) / 2, (here[1] - before[1]) / 2);
    act.zoomBy(apart(here) / Math.max(1, apart(before)), [(here[0] + other[0]) / 2, (here[1] + other[1]) / 2]);
  }
  function release(event, cancelled) {
    if (!pointers.delete(event.pointerId)) return;
    const drawn = lasso;
    cancel();
    if (drawn && !cancelled && travelled > CLICK) act.close(areaOf(drawn));
    else if (!cancelled && travelled <= CLICK && !pointers.size) act.pick(place(event), event.pointerType !== 'mouse');
  }
  function cancel() {
    if (!lasso) return;
    lasso = null;
    act.draw(null);
  }

  canvas.addEventListener('pointerdown', press);
  canvas.addEventListener('pointermove', move);
  canvas.addEventListener('pointerup', event => release(event, false));
  canvas.addEventListener('pointercancel', event => release(event, true));
  canvas.addEventListener('pointerleave', event => {
    if (event.pointerType === 'mouse' && !pointers.size) act.pointAt(null);
  });
  // The browser takes a quick end of a drag for a throw, and would swallow the next tap.
  canvas.addEventListener('touchstart', event => event.preventDefault(), {passive: false});
  canvas.addEventListener(
    'wheel',
    event => {
      event.preventDefault();
      act.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.03 : 0.0018)), place(event));
    },
    {passive: false},
  );
  return {cancel};
}

function areaOf(line) {
  const [[left, top], [right, bottom]] = [line[0], line.at(-1)];
  const across = line.map(([x]) => x);
  const down = line.map(([, y]) => y);
  const whole = (Math.max(...across) - Math.min(...across)) * (Math.max(...down) - Math.min(...down));
  let twice = 0;
  line.forEach(([x, y], i) => {
    const [nextX, nextY] = line[(i + 1) % line.length];
    twice += x * nextY - nextX * y;
  });
  return Math.abs(twice) / 2 < FLAT * whole
    ? [
        [left, top],
        [right, top],
        [right, bottom],
        [left, bottom],
      ]
    : line;
}
