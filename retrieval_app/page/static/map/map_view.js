// The map with its surroundings: tools, the card of a point, the legend, the chosen area, and the address.

import {thumbnailUrl} from '../core/api.js';
import {button, count, debounce, make, percent, refill} from '../core/dom.js';
import {whereLabel} from '../core/loading.js';
import {drawMap} from './map_canvas.js';
import {drawLegend, colourWords, nameOf, placeCaptions, rankLabels} from './map_legend.js';
import {select} from '../core/selection.js';
import {thumb} from '../core/thumbs.js';
import {announce, toast} from '../core/toast.js';
import {linkTo, onState, readState, writeState} from '../core/url_state.js';

const TITLES = {label: 'Labels', cluster: 'Clusters'};
const MOST_IDS = 1000; // in a link; more would not fit into an address

/**
 * Draw it into `body`, coloured by a column, label or cluster; gives what keys act on.
 *
 * @param {HTMLElement} body @param {GalleryMap} map
 */
export function drawMapView(body, map, {column, other, recolour}) {
  const entries = rankLabels(map);
  const byPlace = new Map(entries.map(entry => [entry.place, entry]));
  const entryOf = i => /** @type {(typeof entries)[0]} */ (byPlace.get(map.label[i]));
  const captions = placeCaptions(entries);
  const inLasso = new Set();
  const canLabel = entries.some(entry => entry.name !== null);
  let chosen = new Set();
  let pointed = null;
  let lassoed = [];

  const node = make('canvas', {
    class: 'map-canvas',
    tabindex: 0,
    role: 'application',
    'aria-roledescription': 'map',
    'aria-label': `Map of ${count(map.ids.length, 'image')}`,
    'aria-describedby': 'map-help',
  });
  const card = make('div', {class: 'map-card', hidden: true});
  const status = make('p.map-status.figures');
  const result = make('div', {class: 'map-result', hidden: true, role: 'group', 'aria-label': 'Chosen images'});
  const lasso = button(
    'Choose an area',
    {class: 'map-lasso', title: 'Drag over images, or round them (L, or drag with Shift)', 'aria-pressed': 'false'},
    () => toggleLasso(),
  );
  const tools = make('div', {class: 'map-tools', role: 'group', 'aria-label': 'Map'}, [
    button('Zoom in', {icon: 'plus', iconOnly: true, title: 'Zoom in (+)'}, () => canvas.zoomBy(1.6)),
    button('Zoom out', {icon: 'minus', iconOnly: true, title: 'Zoom out (−)'}, () => canvas.zoomBy(1 / 1.6)),
    button('Show all', {icon: 'fit', iconOnly: true, title: 'Show all (0)'}, () => canvas.goTo(null)),
  ]);
  const legend = drawLegend(entries, {point, choose: toggleLabel});
  const onlyBar = make('div.only-bar');
  body.append(
    make('div.map-stage', node, tools, lasso, card, status, result),
    make('aside', {class: 'map-side', 'aria-label': TITLES[column]}, [
      make('h3', TITLES[column]),
      other && button(`Colour by ${TITLES[other].toLowerCase()}`, {class: 'quiet small'}, () => recolour(other)),
      make('p.small.soft', [
        canLabel ? `Choose one to show only its images.${colourWords(entries)}` : 'This gallery has no labels.',
      ]),
      onlyBar,
      canLabel ? legend.element : '',
    ]),
    make('p', {id: 'map-help', class: 'visually-hidden'}, describe(entries, map.ids.length)),
  );

  let style = getComputedStyle(node);
  const canvas = drawMap(
    node,
    map,
    {
      colour,
      thumb: i => thumbnailUrl(map.ids[i], 128),
      isOn: i =>
        (!chosen.size || chosen.has(map.label[i]))
        && (!pointed || pointed.place === map.label[i])
        && (!lassoed.length || inLasso.has(i)),
      isMarked: i => pointed?.place === map.label[i],
      captions: () =>
        captions.filter(({place}) => (pointed ? place === pointed.place : !chosen.size || chosen.has(place))),
    },
    {hover: showCard, pick, lasso: closeLasso, move: moved},
  );

  function colour(i) {
    const entry = entryOf(i);
    const isMeant = entry === pointed || chosen.has(entry.place);
    const name = entry.colour ? `--point-${entry.colour}` : isMeant ? '--accent' : '--point-other';
    return style.getPropertyValue(name).trim();
  }
  function point(entry) {
    pointed = entry;
    canvas.refresh();
  }

  /** @returns {Partial<State>} */
  const openState = i => ({
    view: 'search',
    parts: [{image: map.ids[i], role: 'like', crop: null}],
    details: map.ids[i],
  });
  const open = i => i >= 0 && writeState(openState(i));
  function showCard(i, at) {
    card.hidden = i < 0;
    if (i < 0) return;
    const entry = entryOf(i);
    refill(card, [
      thumb(map.ids[i], {eager: true}),
      make('p.row', make('i', {class: `swatch colour-${entry.colour}`}), make('b.clip', nameOf(entry))),
      make('a', {class: 'button small', href: linkTo(openState(i))}, 'Open'),
    ]);
    const {clientWidth: width, clientHeight: height} = node;
    card.style.left = `${Math.max(8, at[0] > width / 2 ? at[0] - 190 : at[0] + 18)}px`;
    card.style.top = `${Math.max(8, Math.min(at[1] - 60, height - 240))}px`;
  }
  // A finger cannot hover: its touch shows the card, and the button in it opens.
  function pick(i, touch) {
    card.classList.toggle('held', touch);
    if (!touch) open(i);
  }

  const isDrawing = () => lasso.getAttribute('aria-pressed') === 'true';
  function toggleLasso(enabled = !isDrawing()) {
    lasso.setAttribute('aria-pressed', String(enabled));
    canvas.setLasso(enabled);
    if (enabled) status.textContent = 'Drag over the images you want, or round them';
    else moved(null);
  }
  function closeLasso(found) {
    toggleLasso(false);
    showLassoed(found);
    if (!found.length) toast('No images there');
  }
  function showLassoed(found) {
    lassoed = found;
    inLasso.clear();
    for (const i of found) inLasso.add(i);
    result.hidden = !found.length;
    canvas.refresh();
    if (!found.length) return;
    const share = shareOf(found);
    const ids = found.slice(0, MOST_IDS).map(i => map.ids[i]);
    const words = found.length > MOST_IDS ? `Show the first ${MOST_IDS.toLocaleString('en')}` : 'Show them';
    refill(result, [
      make('span', make('b', count(found.length, 'image')), share && `, ${share}`),
      make('a', {class: 'button primary', href: linkTo({view: 'search', ids})}, words),
      button('Select them', {icon: 'check'}, () => {
        select(found.map(i => map.ids[i]));
        showLassoed([]);
      }),
      button('Choose none', {icon: 'close', iconOnly: true, class: 'quiet'}, () => showLassoed([])),
    ]);
    announce(`${count(found.length, 'image')} chosen`);
  }
  function shareOf(points) {
    if (!canLabel) return '';
    const amounts = new Map();
    for (const i of points) amounts.set(map.label[i], (amounts.get(map.label[i]) ?? 0) + 1);
    const [[place, most]] = [...amounts].sort((a, b) => b[1] - a[1]);
    return `${amounts.size === 1 ? 'all' : percent(most / points.length)} ${nameOf(byPlace.get(place))}`;
  }

  const tell = debounce(() => {
    if (isDrawing()) return;
    const seen = canvas.inView;
    const words = count(seen.length, 'image');
    const where = seen.length === map.ids.length ? words : `${words} in view`;
    status.textContent = seen.length
      ? [where, shareOf(seen)].filter(Boolean).join(' · ')
      : 'No images here; 0 shows all';
    if (document.activeElement === node) announce(status.textContent);
  }, 350);
  const keep = debounce(({x, y, zoom}) => {
    if (readState().view !== 'map') return;
    const at = Math.abs(zoom - 1) < 0.01 ? null : [x.toFixed(4), y.toFixed(4), zoom.toFixed(2)].join(',');
    change({at});
  }, 500);
  function moved(place) {
    if (place) {
      keep(place);
      card.hidden = true;
    }
    tell();
  }

  const change = extra => writeState({extra: {...readState().extra, ...extra}}, {replace: true});
  function toggleLabel(entry) {
    const next = new Set(chosen);
    if (!next.delete(entry.place)) next.add(entry.place);
    change({only: [...next].map(place => (place < 0 ? '-' : `.${encodeURIComponent(map.labels[place])}`)).join(',')});
  }
  function readChosen({extra}) {
    const names = (extra.only ?? '').split(',').filter(Boolean);
    const places = names.map(name => (name === '-' ? -1 : map.labels.indexOf(decodeName(name.slice(1)))));
    chosen = new Set(places.filter(place => byPlace.has(place)));
    legend.mark(chosen);
    const shown = entries.filter(entry => chosen.has(entry.place));
    const labels = shown.map(entry => entry.name).filter(name => name !== null);
    const amount = shown.reduce((sum, entry) => sum + entry.amount, 0);
    refill(onlyBar, [
      chosen.size > 0 && [
        make('b', {role: 'status'}, count(amount, 'image')),
        labels.length === shown.length
          && make(
            'a',
            {
              class: 'button small',
              href: linkTo({view: 'search', filters: [whereLabel(...labels).replace(/^label/, column)]}),
            },
            ['Show them'],
          ),
        button(`All ${TITLES[column].toLowerCase()}`, {class: 'quiet small'}, () => change({only: null})),
      ],
    ]);
    canvas.refresh();
  }

  const place = readPlace(readState());
  if (place) canvas.goTo(place);
  readChosen(readState());
  const stop = onState(state => (node.isConnected ? state.view === 'map' && readChosen(state) : stop()));
  addEventListener('themechange', () => {
    style = getComputedStyle(node);
    canvas.refresh();
  });
  moved(null);

  function leave() {
    if (canvas.busy) canvas.cancel();
    else if (isDrawing()) toggleLasso(false);
    else if (lassoed.length) showLassoed([]);
    else if (chosen.size) change({only: null});
    else return false;
    return true;
  }
  return {
    canvas,
    toggleLasso: () => toggleLasso(),
    leave,
    open: () => open(canvas.atCentre),
    owns: event => event.target === node,
  };
}

// For screen readers; the list of labels beside it links to the images of each.
function describe(entries, total) {
  const largest = entries.filter(entry => entry.name !== null).slice(0, 8);
  const shares = largest.map(entry => `${nameOf(entry)}, ${percent(entry.amount / total)}`).join('; ');
  return (
    'Arrow keys move the map, plus and minus zoom, 0 shows all, Enter opens the image in the middle. '
    + `The list of labels beside the map leads to the images of each. ${shares && `The largest labels: ${shares}.`}`
  );
}

function readPlace({extra}) {
  const [x, y, zoom] = (extra.at ?? '').split(',').map(Number);
  return [x, y, zoom].every(Number.isFinite) && zoom > 0 && zoom < 500 ? {x, y, zoom} : null;
}

function decodeName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
