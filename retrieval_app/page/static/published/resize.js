// Resizing of pixels with antialiasing, as Pillow does it: an image gives the model the same input as on the server.

/** @typedef {{data: Uint8Array | Uint8ClampedArray, width: number, height: number}} Pixels RGBA, row by row */

const ONE = 1 << 22; // of Pillow's weights, which are whole numbers
const sinc = x => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** Filters by name: how far they reach, and their weights. @type {Record<string, {reach: number, weigh: (x: number) => number}>} */
const FILTERS = {
  bilinear: {reach: 1, weigh: x => Math.max(0, 1 - Math.abs(x))},
  bicubic: {
    reach: 2,
    weigh(x) {
      const far = Math.abs(x);
      if (far < 1) return (1.5 * far - 2.5) * far * far + 1;
      return far < 2 ? ((-0.5 * far + 2.5) * far - 4) * far + 2 : 0;
    },
  },
  lanczos: {reach: 3, weigh: x => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)},
};

/** For each place of the result: the first place that counts, and the weights from there. */
function listWeights(from, to, {reach, weigh}) {
  const step = from / to;
  const scale = Math.max(step, 1);
  return Array.from({length: to}, (_, place) => {
    const centre = (place + 0.5) * step;
    const first = Math.max(0, Math.trunc(centre - reach * scale + 0.5));
    const last = Math.min(from, Math.trunc(centre + reach * scale + 0.5));
    const weights = Array.from({length: last - first}, (__, i) => weigh((first + i - centre + 0.5) / scale));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return {first, weights: Float64Array.from(weights, weight => Math.round((weight / sum) * ONE))};
  });
}

/** Resize rows of RGB to another width, and turn them: of (height, width) to (to, height). */
function resizeTurned(data, {width, height, channels}, to, filter) {
  const result = new Uint8ClampedArray(3 * to * height); // rounds, and cuts off what is beyond 0 and 255
  const weights = width === to ? null : listWeights(width, to, filter);
  for (let x = 0; x < to; x += 1) {
    const {first, weights: own} = weights?.[x] ?? {first: x, weights: [ONE]};
    for (let y = 0; y < height; y += 1) {
      let [red, green, blue] = [0, 0, 0];
      for (let i = 0, at = (y * width + first) * channels; i < own.length; i += 1, at += channels) {
        red += own[i] * data[at];
        green += own[i] * data[at + 1];
        blue += own[i] * data[at + 2];
      }
      const place = 3 * (x * height + y);
      result[place] = Math.floor(red / ONE + 0.5);
      result[place + 1] = Math.floor(green / ONE + 0.5);
      result[place + 2] = Math.floor(blue / ONE + 0.5);
    }
  }
  return result;
}

/** The model's input, RGB, of an image. @param {Pixels} image @param {{resize: number, crop: number, interpolation: string}} config */
export function preprocess({data, width, height}, {resize, crop, interpolation}) {
  const filter = FILTERS[interpolation];
  const turned = resizeTurned(data, {width, height, channels: 4}, resize, filter);
  const resized = resizeTurned(turned, {width: height, height: resize, channels: 3}, resize, filter);
  const margin = (resize - crop) >> 1;
  const input = new Uint8Array(3 * crop * crop);
  for (let row = 0; row < crop; row += 1) {
    const start = 3 * ((row + margin) * resize + margin);
    input.set(resized.subarray(start, start + 3 * crop), 3 * row * crop);
  }
  return input;
}
