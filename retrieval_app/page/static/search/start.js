// The first sight: a place for photos, and some images of the gallery to start from.

import {button, make, refill, shownText} from '../core/dom.js';
import {get} from '../core/api.js';
import {thumb} from '../core/thumbs.js';
import {makeAddressLine, makeDrop} from './upload.js';

const SAMPLES = 12;
const randomSeed = () => Math.floor(Math.random() * 1e6);

/** The start. `sent(tokens)` hears of photos, `search(id)` of a chosen image. Has `element` and `load()`. */
export function makeStart({sent, search}) {
  const hint = matchMedia('(hover: none)').matches
    ? 'Choose or take a photo. Several at once make one search.'
    : 'Drop photos here, click to choose, or paste. Several at once make one search.';
  const strip = make('ul.samples', [Array.from({length: SAMPLES}, () => make('li.skeleton'))]);
  const element = make('section', {class: 'start', 'aria-labelledby': 'start-title'}, [
    make('div.start-ask', [makeDrop({title: 'Find images like yours', hint, sent}), makeAddressLine({sent})]),
    make('div.start-samples', [
      make('div.row.nowrap', [
        make('h2', {id: 'start-title'}, 'Or start from one of these'),
        button('Show others', {icon: 'shuffle', class: 'quiet small push'}, () => load(randomSeed())),
      ]),
      strip,
    ]),
  ]);
  let loaded = false;

  async function load(seed) {
    try {
      const {images} = await get('images/random', {count: SAMPLES, seed, include: ['label', 'path']});
      loaded = true;
      const drawSample = image => {
        const path = shownText(image.path);
        const given = {title: path, 'aria-label': `Search with ${path}`, onclick: () => search(image.id)};
        return make('li', make('button', given, thumb(image.id, {eager: true})));
      };
      refill(strip, images.map(drawSample));
    } catch (error) {
      refill(strip, make('li.wide.small.soft', error.message));
    }
  }

  return {element, load: () => loaded || load(0)};
}
