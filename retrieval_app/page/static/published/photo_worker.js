// Embeds photos by the model of the gallery, apart from the page, which stays usable meanwhile.

import {preprocess} from './resize.js';

const MOST_PIXELS = 100_000_000;
/** @type {any} */
let runtime = null;
/** @type {any} */
let session = null;
/** @type {any} */
let config = null;

async function open({runtime: script, model, wasm, preprocess: given}) {
  config = given;
  runtime = await import(script);
  Object.assign(runtime.env.wasm, {numThreads: 1, wasmBinary: wasm}); // threads need headers that few hosts send
  session = await runtime.InferenceSession.create(new Uint8Array(model), {executionProviders: ['wasm']});
}

/**
 * The pixels of a photo or a part of it, upright, on white, by the colour values of its file.
 *
 * @param {{file: Blob, name: string, crop: Crop | null}} photo
 */
async function decode({file, name, crop}) {
  const options = /** @type {ImageBitmapOptions} */ ({colorSpaceConversion: 'none', premultiplyAlpha: 'none'});
  const image = await createImageBitmap(file, options).catch(() => {
    throw new Error(`${name}: this browser cannot read it as an image.`);
  });
  if (image.width * image.height > MOST_PIXELS) {
    throw new Error(`${name}: ${image.width} × ${image.height} pixels are too many.`);
  }
  const part = crop ?? {x: 0, y: 0, width: 1, height: 1};
  const [left, top] = [Math.round(part.x * image.width), Math.round(part.y * image.height)];
  const width = Math.min(image.width, Math.round((part.x + part.width) * image.width)) - left;
  const height = Math.min(image.height, Math.round((part.y + part.height) * image.height)) - top;
  const context = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
  if (!context) throw new Error(`${name}: this browser cannot draw ${width} × ${height} pixels.`);
  context.fillStyle = 'white';
  context.fillRect(0, 0, width, height);
  context.drawImage(image, -left, -top);
  image.close();
  return context.getImageData(0, 0, width, height);
}

async function embed(photo) {
  const pixels = preprocess(await decode(photo), config);
  const images = new runtime.Tensor('uint8', pixels, [1, config.crop, config.crop, 3]);
  const {embeddings} = await session.run({images}, ['embeddings']);
  return Float32Array.from(embeddings.data);
}

let before = Promise.resolve();
addEventListener('message', ({data, ports: [port]}) => {
  const run = async () => {
    try {
      port.postMessage({answer: await (data.runtime ? open(data) : embed(data))});
    } catch (error) {
      port.postMessage({problem: error.message || 'The photo could not be read.'});
    }
  };
  before = before.then(run); // one after the other
});
