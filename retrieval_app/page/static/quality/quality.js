// Quality: how well search works on this gallery, by its own labels, in words before numbers.

import {calibratedGallery, gallery} from '../core/api.js';
import {calibrationChart, precise, recallChart, scoreChart} from '../core/charts.js';
import {reloadAfterDecisions} from '../core/decided.js';
import {count, fileSize, make, refill, shownText} from '../core/dom.js';
import {awaitReady, notice, openView} from '../core/loading.js';
import {drawClasses, drawConfusion, drawWorst} from './quality_tables.js';

const RECALL = 'Of the ten truly nearest images, so many are among the ten it finds; measured when it was built';
const TIME = 'In the index alone, measured when it was built';

/** Fill the panel. */
export function start(panel) {
  const load = openView(panel, {
    title: 'Quality',
    lead:
      'How well search works here, measured with the gallery’s own labels: every labelled image '
      + 'is searched for in turn, itself left out.',
    kind: 'quality-body',
    draw: show,
  });
  reloadAfterDecisions('quality', load);
}

async function show(body, _, retry) {
  const described = await gallery();
  const labelled = described.labels.labelled;
  if (!labelled) {
    refill(body, noLabels(), drawFacts(described.index, described));
    return;
  }
  const quality = await awaitReady(body, 'quality', {
    retry,
    what: 'Measuring the gallery',
    why: 'Every labelled image is searched for once. The result is kept until labels are decided or the gallery changes.',
  });
  if (!quality) return;
  if (!quality.queries) {
    refill(body, tooFew(quality.problem), drawFacts(quality.index, described));
    return;
  }
  const calibration = make('div.quality-card');
  refill(body, [
    drawHeadline(quality, described),
    make('div.quality-charts', [
      make('div.quality-card', recallChart(quality.recall_at)),
      calibration,
      quality.histogram && make('div.quality-card', scoreChart(quality.histogram)),
    ]),
    drawClasses(quality.classes),
    drawConfusion(quality.confusion),
    drawWorst(quality.worst),
    drawFacts(quality.index, described),
  ]);
  drawCalibration(calibration);
}

const noLabels = () =>
  notice({
    icon: 'label',
    title: 'This gallery has no labels',
    text:
      'Quality is measured with labels: whether an image finds others of the same label. Build the gallery from folders '
      + 'named after their labels, or with a label file, and this page fills. Search and the map work without.',
  });
const tooFew = problem =>
  notice({
    icon: 'label',
    title: 'Too few labelled images to measure',
    text: problem ?? 'At least two images of one label are needed, so that one can find the other.',
  });

/** @param {QualityReport} quality @param {GalleryFacts} described */
function drawHeadline(quality, described) {
  const first = quality.recall_at[0];
  const [low, high] = first.interval;
  const others = described.images - quality.queries;
  return make('section', {class: 'quality-headline', 'aria-label': 'In short'}, [
    make('p.figure-large', make('b', precise(first.value)), make('span', 'Recall@1')),
    make('div.in-words', [
      make('p.sentence', [
        'Of 100 searches with a labelled image of this gallery, ',
        make('b', String(Math.round(100 * first.value))),
        ' find one of the same label first.',
      ]),
      make('p.soft', [
        `Measured with ${quality.sampled ? 'a sample of ' : ''}${count(quality.queries, 'search', 'searches')}; with 95 % confidence the `
          + `true share lies between ${precise(low)} and ${precise(high)}.`
          + (others > 0 && !quality.sampled
            ? ` ${count(others, 'image')} took no part: without a label, or the only one of it.`
            : ''),
      ]),
      described.labels.count === 1
        && make('p.soft', 'They all have the same label, so that nothing else could be found: it says nothing here.'),
      quality.grouped && drawGrouped(quality.grouped),
      quality.map_at_r
        && make('p.soft', [
          make('b', `MAP@R ${precise(quality.map_at_r.value)}`),
          `: how well all images of a label gather at the top, not only the first; 100 % would be every one of them before any other.`,
        ]),
    ]),
  ]);
}

/** @param {NonNullable<QualityReport['grouped']>} grouped */
function drawGrouped({value, images, groups, found_by: foundBy, flattered}) {
  const found = `${count(images, 'image')} in ${count(groups, 'group')}, by ${foundBy}`;
  if (value === null) {
    return make('p.soft', [
      make('b', 'Every image finds only its own group'),
      ` (${found}): no figure tells how new photos will fare.`,
    ]);
  }
  return make('p.soft', [
    'Where no image may find another of its own group: ',
    make('b', precise(value)),
    ` (${found}).` + (flattered ? ' For photos from elsewhere expect this one.' : ''),
  ]);
}

// The calibration is computed apart from the rest.
/** @param {HTMLElement} place */
async function drawCalibration(place) {
  refill(place, make('p', {class: 'soft', role: 'status'}, 'What a score means is being measured…'));
  const facts = await calibratedGallery();
  if (facts === null) return; // the server is gone
  const {calibration} = facts;
  if (calibration?.state === 'ready' && calibration.points?.length > 1) {
    refill(place, calibrationChart(calibration.points));
  } else {
    refill(place, [
      make('h3', 'What a score means here'),
      make(
        'p.soft',
        'Too few images with another of their label in another group to tell how often neighbours at a score have it.',
      ),
    ]);
  }
}

/** @param {GalleryFacts['index']} index @param {GalleryFacts} described */
function drawFacts(index, described) {
  const {images, labels, version, model, embedding_dim: dimensions} = described;
  const labelled = `${labels.labelled.toLocaleString('en')} of them labelled, with ${count(labels.count, 'label')}`;
  const names = [model.backbone, model.method].filter(Boolean).map(shownText).join(', ');
  const recall = index.recall_at_10 ?? index.recall;
  const latency = index.latency_ms ?? index.latency_ms_median;
  const isKnown = value => typeof value === 'number';
  const facts = /** @type {string[][]} */ (
    [
      ['Images', images.toLocaleString('en'), labelled],
      ['Version', version, 'Every change of the gallery makes a new version; answers never mix two'],
      ['Model', names || 'unknown', `It turns each image into ${dimensions} numbers`],
      index.type && ['Index', shownText(index.factory ?? index.type), shownText(index.explanation)],
      isKnown(recall) && ['Recall of the index', precise(recall), RECALL],
      isKnown(latency) && ['Time of a search', `${latency.toFixed(latency < 1 ? 2 : 1)} ms`, TIME],
      isKnown(index.memory_bytes) && ['Memory', fileSize(index.memory_bytes), 'That the index takes'],
    ].filter(Boolean)
  );
  return make('section.quality-card', [
    make('h3', 'The gallery and its index'),
    make('dl.facts-list', [
      facts.map(([name, value, why]) =>
        make('div', make('dt', name), make('dd', make('b', value), why && make('span', why))),
      ),
    ]),
  ]);
}
