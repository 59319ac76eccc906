// Map: every image as a point, alike ones near each other; look around, choose labels, open a point, draw round many.

import {reloadAfterDecisions} from '../core/decided.js';
import {count, refill} from '../core/dom.js';
import {registerKeys} from '../core/keys.js';
import {awaitReady, notice, openView} from '../core/loading.js';
import {drawMapView} from './map_view.js';
import {readState, writeState} from '../core/url_state.js';

const STEPS = {ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60]};
const METHODS = {'t-sne': 't-SNE', umap: 'UMAP', pca: 'PCA'};
let view = null; // what the keys act on, once the map stands

/** Fill the panel. */
export function start(panel) {
  const key = (keys, does, run) => ({keys, does, run: event => (view ? run(event) : false)});
  const onMap = run => event => (view.owns(event) ? run(event) : false);
  const pan = event => view.canvas.panBy(...STEPS[event.key]);
  const open = () => view.open();
  registerKeys('map', 'Map', [
    key(['+', '='], 'Zoom in', () => view.canvas.zoomBy(1.4)),
    key(['-'], 'Zoom out', () => view.canvas.zoomBy(1 / 1.4)),
    key(['0'], 'Show all', () => view.canvas.goTo(null)),
    key(Object.keys(STEPS), 'Move, when the map has the focus', onMap(pan)),
    key(['Enter'], 'Open the image in the middle', onMap(open)),
    key(['l'], 'Draw round images', () => view.toggleLasso()),
    key(['Escape'], 'Leave the drawing, then the chosen images, then the chosen labels', () => view.leave()),
  ]);
  const lead = 'Images that the model finds alike lie near each other.';
  reloadAfterDecisions('map', openView(panel, {title: 'Map', lead, kind: 'map-body', draw: show}));
}

async function show(body, about, retry) {
  const map = await awaitReady(body, 'map', {
    retry,
    what: 'Drawing the map',
    drawing: 'map',
    why: 'Each image finds its place beside its neighbours. This happens once for each version of the gallery.',
  });
  if (!map) return;
  if (!map.ids.length) {
    refill(body, [
      notice({icon: 'map', title: 'No images yet', text: 'The map fills as soon as the gallery has images.'}),
    ]);
    return;
  }
  about.textContent = describe(map);
  const draw = () => {
    refill(body);
    const byCluster = map.clusters.length > 0 && readState().extra.colours === 'cluster';
    view = drawMapView(body, byCluster ? {...map, label: map.cluster, labels: map.clusters} : map, {
      column: byCluster ? 'cluster' : 'label',
      other: map.clusters.length > 0 && (byCluster ? 'label' : 'cluster'),
      recolour(colours) {
        writeState(
          {extra: {...readState().extra, only: null, colours: colours === 'cluster' ? colours : null}},
          {replace: true},
        );
        draw();
      },
    });
  };
  draw();
}

/** @param {GalleryMap} map */
function describe({ids, sampled, total, method}) {
  if (ids.length === 1) return 'The gallery has one image, with nothing to lie near.';
  const shown = count(ids.length, 'image');
  return (
    `${sampled ? `A sample of ${shown} of ${total.toLocaleString('en')}` : `All ${shown}`}, `
    + `laid out by ${METHODS[method] ?? method}: images that the model finds alike lie near each other. `
    + 'Neighbourhoods can be trusted; distances between far groups, and their sizes, are only a hint.'
  );
}
