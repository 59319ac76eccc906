// Map: every image as a point, alike ones near each other; look around, choose labels, open a point, draw round many.

import {isAborted, thumbnailUrl} from './api.js';
import {button, count, debounce, make, percent, refill} from './dom.js';
import {registerKeys} from './keys.js';
import {awaitReady, notice, showFailure, whereLabel} from './loading.js';
import {drawMap} from './map_canvas.js';
import {drawLegend, nameOf, placeCaptions, rankLabels} from './map_legend.js';
import {thumb} from './thumbs.js';
import {announce, toast} from './toast.js';
import {linkTo, onState, readState, writeState} from './url_state.js';

const MOST_IDS = 1000;  // in a link; more would not fit into an address
const STEP = 60;
const METHODS = {'t-sne': 't-SNE', umap: 'UMAP', pca: 'PCA'};
let keys = null;  // what the keys act on, once the map stands

/** Fill the panel. */
export function start(panel) {
  const body = make('div', {class: 'map-body'});
  const about = make('p', {class: 'lead'}, 'Images that the model finds alike lie near each other.');
  refill(panel, make('div', {class: 'view-head'}, make('h2', {}, 'Map'), about), body);
  const load = () => show(body, about, load).catch(error => isAborted(error) || showFailure(body, error, load));
  const act = run => event => keys?.owns(event) ? run(event) : false;
  registerKeys('map', 'Map', [
    {keys: ['+', '='], does: 'Zoom in', run: () => keys ? keys.canvas.zoomBy(1.4) : false},
    {keys: ['-'], does: 'Zoom out', run: () => keys ? keys.canvas.zoomBy(1 / 1.4) : false},
    {keys: ['0'], does: 'Show all', run: () => keys ? keys.canvas.goTo(null) : false},
    {keys: ['ArrowLeft'], does: 'Move, when the map has the focus', run: act(() => keys.canvas.panBy(STEP, 0))},
    {keys: ['ArrowRight'], does: '', run: act(() => keys.canvas.panBy(-STEP, 0))},
    {keys: ['ArrowUp'], does: '', run: act(() => keys.canvas.panBy(0, STEP))},
    {keys: ['ArrowDown'], does: '', run: act(() => keys.canvas.panBy(0, -STEP))},
    {keys: ['Enter'], does: 'Open the image in the middle', run: act(() => keys.open())},
    {keys: ['l'], does: 'Draw round images', run: () => keys ? keys.toggleLasso() : false},
    {keys: ['Escape'], does: 'Leave the drawing, then the chosen images, then the chosen labels', run: () => keys ? keys.leave() : false},
  ]);
  load();
}

async function show(body, about, retry) {
  const map = await awaitReady(body, 'map', {retry, what: 'Drawing the map',
    why: 'Each image finds its place beside its neighbours. This happens once for each version of the gallery.'});
  if (!map) return;
  if (!map.ids.length) { refill(body, notice({icon: 'map', title: 'No images yet', text: 'The map fills as soon as the gallery has images.'})); return; }
  about.textContent = `${map.sampled ? `A sample of ${count(map.ids.length, 'image')} of ${map.total.toLocaleString('en')}` : `All ${count(map.ids.length, 'image')}`}, `
    + `laid out by ${METHODS[map.method] ?? map.method}: images that the model finds alike lie near each other. Neighbourhoods can be trusted; distances `
    + 'between far groups, and their sizes, are only a hint.';
  refill(body);
  drawView(body, map);
}

function drawView(body, map) {
  const entries = rankLabels(map), byPlace = new Map(entries.map(entry => [entry.place, entry]));
  const canLabel = entries.some(entry => entry.name !== null);
  const captions = placeCaptions(entries, map);
  let chosen = new Set(), pointed = null, lassoed = [];
  const node = make('canvas', {class: 'map-canvas', tabindex: 0, role: 'application', 'aria-roledescription': 'map', 'aria-label': `Map of ${count(map.ids.length, 'image')}`, 'aria-describedby': 'map-help'});
  const help = make('p', {id: 'map-help', class: 'visually-hidden'},
    `Arrow keys move the map, plus and minus zoom, 0 shows all, Enter opens the image in the middle. ${describe(entries, map.ids.length)} `
    + 'The list of labels beside the map leads to the images of each.');
  const card = make('div', {class: 'map-card', hidden: true});
  const status = make('p', {class: 'map-status figures'});
  const result = make('div', {class: 'map-result', hidden: true, role: 'group', 'aria-label': 'Chosen images'});
  const lasso = button('Choose an area', {class: 'map-lasso', title: 'Draw round images (L, or drag with Shift)', 'aria-pressed': 'false'}, () => toggleLasso());
  const tools = make('div', {class: 'map-tools', role: 'group', 'aria-label': 'Map'},
    button('Zoom in', {icon: 'plus', iconOnly: true, title: 'Zoom in (+)'}, () => canvas.zoomBy(1.6)),
    button('Zoom out', {icon: 'minus', iconOnly: true, title: 'Zoom out (−)'}, () => canvas.zoomBy(1 / 1.6)),
    button('Show all', {class: 'fit', title: 'Show all (0)'}, () => canvas.goTo(null)));
  const legend = drawLegend(entries, {point: entry => { pointed = entry; canvas.refresh(); }, choose: toggleLabel});
  const onlyBar = make('div', {class: 'only-bar'});
  const side = make('aside', {class: 'map-side', 'aria-label': 'Labels'},
    make('h3', {}, 'Labels'), make('p', {class: 'small soft'}, canLabel ? 'Choose one to show only its images.' : 'This gallery has no labels.'),
    onlyBar, canLabel && legend.element);
  body.append(make('div', {class: 'map-stage'}, node, tools, lasso, card, status, result), side, help);

  const colours = () => getComputedStyle(node);
  let style = colours(), accent = style.getPropertyValue('--accent').trim();
  const colourOf = i => {
    const entry = byPlace.get(map.label[i]);
    if (entry.colour) return style.getPropertyValue(`--point-${entry.colour}`).trim();
    return entry === pointed || chosen.has(entry.place) ? accent : style.getPropertyValue('--point-other').trim();
  };
  const inLasso = new Set();
  const canvas = drawMap(node, map, {
    colour: colourOf,
    thumb: i => thumbnailUrl(map.ids[i], 128),
    isOn: i => (!chosen.size || chosen.has(map.label[i])) && (!pointed || pointed.place === map.label[i]) && (!lassoed.length || inLasso.has(i)),
    captions: () => captions.filter(({place}) => pointed ? place === pointed.place : !chosen.size || chosen.has(place)),
    isMarked: i => pointed?.place === map.label[i],
  }, {hover: showCard, pick, lasso: found => { showLassoed(found); if (!found.length) toast('No images there'); }, move: moved});

  function showCard(i, at) {
    card.hidden = i < 0;
    if (i < 0) return;
    const entry = byPlace.get(map.label[i]);
    refill(card, thumb(map.ids[i], {eager: true}), make('p', {class: 'row'},
      make('i', {class: `swatch colour-${entry.colour}`}), make('b', {class: 'clip'}, nameOf(entry))),
    make('a', {class: 'button small', href: linkTo(openState(i))}, 'Open'));
    const {clientWidth: width, clientHeight: height} = node;
    card.style.left = `${Math.max(8, at[0] > width / 2 ? at[0] - 190 : at[0] + 18)}px`;
    card.style.top = `${Math.max(8, Math.min(at[1] - 60, height - 240))}px`;
  }
  const openState = i => ({view: 'search', parts: [{image: map.ids[i], role: 'like', crop: null}], details: map.ids[i]});
  function pick(i, at, touch) {
    card.classList.toggle('held', touch);  // a finger cannot hover: its first touch shows the card, the button in it opens
    if (i >= 0 && !touch) writeState(openState(i));
  }
  function toggleLasso(enabled = lasso.getAttribute('aria-pressed') !== 'true') {
    lasso.setAttribute('aria-pressed', String(enabled));
    canvas.setLasso(enabled);
    status.textContent = enabled ? 'Drag round the images you want' : '';
    if (!enabled) moved();
  }
  function showLassoed(found) {
    toggleLasso(false);
    lassoed = found;
    inLasso.clear();
    for (const i of found) inLasso.add(i);
    result.hidden = !found.length;
    if (!found.length) { canvas.refresh(); return; }
    const shares = shareOf(found), ids = found.slice(0, MOST_IDS).map(i => map.ids[i]);
    refill(result, make('span', {}, make('b', {}, count(found.length, 'image')), shares && `, ${shares}`),
      make('a', {class: 'button primary', href: linkTo({view: 'search', ids})}, found.length > MOST_IDS ? `Show the first ${MOST_IDS.toLocaleString('en')}` : 'Show them'),
      button('Choose none', {icon: 'close', iconOnly: true, class: 'quiet'}, () => showLassoed([])));
    announce(`${count(found.length, 'image')} chosen`);
    canvas.refresh();
  }
  function shareOf(points) {
    const amounts = new Map();
    for (const i of points) amounts.set(map.label[i], (amounts.get(map.label[i]) ?? 0) + 1);
    const [[place, most]] = [...amounts].sort((a, b) => b[1] - a[1]);
    if (!canLabel) return '';
    return amounts.size === 1 ? `all ${nameOf(byPlace.get(place))}` : `${percent(most / points.length)} ${nameOf(byPlace.get(place))}`;
  }
  const tell = debounce(() => {
    const seen = canvas.inView;
    const words = seen.length === map.ids.length ? count(seen.length, 'image') : `${count(seen.length, 'image')} in view`;
    if (lasso.getAttribute('aria-pressed') !== 'true') status.textContent = seen.length ? [words, shareOf(seen)].filter(Boolean).join(' · ') : 'No images here: 0 shows all';
    if (document.activeElement === node) announce(status.textContent);
  }, 350);
  const keep = debounce(({x, y, zoom}) => {
    if (readState().view !== 'map') return;
    const at = Math.abs(zoom - 1) < .01 ? null : [x.toFixed(4), y.toFixed(4), zoom.toFixed(2)].join(',');
    writeState({extra: {...readState().extra, at}}, {replace: true});
  }, 500);
  let last = null;
  function moved(view = null) { if (view) { last = view; keep(view); } card.hidden = true; tell(); }

  function toggleLabel(entry) {
    const next = new Set(chosen);
    if (!next.delete(entry.place)) next.add(entry.place);
    const only = [...next].map(place => place < 0 ? '-' : `.${encodeURIComponent(map.labels[place])}`).join(',');
    writeState({extra: {...readState().extra, only: only || null}}, {replace: true});
  }
  function readChosen({extra}) {
    const names = (extra.only ?? '').split(',').filter(Boolean).map(name => name === '-' ? -1 : map.labels.indexOf(decodeName(name.slice(1))));
    chosen = new Set(names.filter(place => byPlace.has(place)));
    legend.mark(chosen);
    const shown = entries.filter(entry => chosen.has(entry.place)), labels = shown.map(entry => entry.name).filter(name => name !== null);
    const amount = shown.reduce((sum, entry) => sum + entry.amount, 0);
    refill(onlyBar, chosen.size > 0 && [make('b', {role: 'status'}, count(amount, 'image')),
      labels.length === shown.length && make('a', {class: 'button small', href: linkTo({view: 'search', filters: [whereLabel(...labels)]})}, 'Show them'),
      button('All labels', {class: 'quiet small'}, () => writeState({extra: {...readState().extra, only: null}}, {replace: true}))]);
    canvas.refresh();
  }
  const readPlace = ({extra}) => {
    const [x, y, zoom] = (extra.at ?? '').split(',').map(Number);
    return [x, y, zoom].every(Number.isFinite) && zoom > 0 && zoom < 500 ? {x, y, zoom} : null;
  };
  const place = readPlace(readState());
  if (place) canvas.goTo(place);
  readChosen(readState());
  onState(state => { if (state.view === 'map') readChosen(state); });
  addEventListener('themechange', () => { style = colours(); accent = style.getPropertyValue('--accent').trim(); canvas.refresh(); });
  moved(last);
  keys = {
    canvas, toggleLasso,
    owns: event => event.target === node,
    open: () => { const i = canvas.atCentre; if (i >= 0) writeState(openState(i)); },
    leave() {
      if (canvas.busy) canvas.cancel();
      else if (lasso.getAttribute('aria-pressed') === 'true') toggleLasso(false);
      else if (lassoed.length) showLassoed([]);
      else if (chosen.size) writeState({extra: {...readState().extra, only: null}}, {replace: true});
      else return false;
      return true;
    },
  };
}

function describe(entries, total) {
  const largest = entries.filter(entry => entry.name !== null).slice(0, 8);
  return largest.length ? `The largest labels: ${largest.map(entry => `${nameOf(entry)}, ${percent(entry.amount / total)}`).join('; ')}.` : '';
}

function decodeName(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
