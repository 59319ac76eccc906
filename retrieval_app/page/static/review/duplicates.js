// Near-duplicates view: groups of images side by side, with a decision for each group.

import {gallery} from '../core/api.js';
import {makeLeaks, makeRule} from './duplicate_rules.js';
import {drawGroup, openComparison, wordsFor} from './duplicate_group.js';
import {count, make, refill} from '../core/dom.js';
import {registerKeys} from '../core/keys.js';
import {awaitReady, openView} from '../core/loading.js';
import {drawNothingIn, drawReadOnly, drawReviewBar, LIST_STATES, readListState} from './review_bar.js';
import {ReviewList} from './review_list.js';
import {select} from '../core/selection.js';
import {toast} from '../core/toast.js';
import {onState, readState, writeState} from '../core/url_state.js';

const PAGE = 20;
let view = null; // for the keys, once there is a list

/** Fill the panel. */
export function start(panel) {
  const key = (keys, does, run) => ({keys, does, run: event => (view ? run(event) : false)});
  registerKeys('duplicates', 'Duplicates', [
    key(['j', 'ArrowDown'], 'Next group', () => view.list.step(1)),
    key(['k', 'ArrowUp'], 'Previous group', () => view.list.step(-1)),
    key(['a'], 'Duplicates: keep the marked images, drop the others', () => view.decide('duplicates')),
    key(['Enter'], 'The same, on a group', event =>
      event.target.closest('button, a, label, summary, input') ? false : view.decide('duplicates'),
    ),
    key(['d'], 'Different images, keep all', () => view.decide('different')),
    key(['1', '2', '3', '4', '5', '6', '7', '8', '9'], 'Mark that image to be kept, or not', event =>
      view.mark(Number(event.key)),
    ),
    key(['s'], 'Select the images of the group, for a label or tags', () => view.select()),
    key(['u', 'Ctrl+z'], 'Undo the last decision', () => view.undo()),
    key(['z'], 'Enlarge; ← and → go through the group', () => view.zoom()),
  ]);
  openView(panel, {
    title: 'Duplicates',
    lead:
      'Images that are the same or nearly so. Dropped images leave the results; files stay where they are until you move '
      + 'them.',
    draw: open,
  });
}

const readFilter = (state = readState()) => ({
  state: readListState(state, LIST_STATES),
  labels_differ: Boolean(state.extra.differ),
});

async function open(body, _, retry) {
  view = null;
  const described = await gallery();
  const first = await awaitReady(body, 'duplicates', {
    params: {...readFilter(), limit: PAGE},
    retry,
    what: 'Finding near-duplicates',
    why: 'Every image is compared with its nearest ones, once for each version of the gallery.',
  });
  if (first) drawList(body, first, described.permissions.review);
}

function drawList(body, first, canReview) {
  const differ = make('input', {
    type: 'checkbox',
    onchange: () => writeState({extra: {...readState().extra, differ: differ.checked ? '1' : null}}),
  });
  const bar = drawReviewBar({
    canReview,
    filters: [make('label.row', differ, 'Labels differ')],
    on: {
      state: name => writeState({extra: {...readState().extra, state: name === 'open' ? null : name}}),
      undo: () => list.undo(),
    },
  });
  const found = make('p', {role: 'status'});
  const rulePlace = make('div');
  const place = make('div.duplicate-groups');
  const more = make('div.more-line');
  const leaks = makeLeaks(() => list.refresh(), {canReview});
  refill(body, [
    drawReadOnly(canReview),
    bar.element,
    leaks.element,
    make('div.row.review-line', found),
    rulePlace,
    place,
    more,
  ]);

  const list = new ReviewList({
    path: 'duplicates',
    area: 'duplicates',
    size: PAGE,
    readFilter,
    place,
    more,
    words: wordsFor,
    keyOf: group => group.group,
    idsOf: group => group.images.map(image => image.id),
    drawItem: /** @param {GroupEntry} group */ group =>
      drawGroup(group, {canReview, on: {focus: target => list.setCurrent(target), zoom, decide}}),
    drawNothing,
    pack: ([[group, decision]]) => ({group: group.group, ...(decision ?? {decision: 'open', keep: []})}),
    onChange(now) {
      bar.update({...now.tally, state: now.filter.state});
      differ.checked = Boolean(now.filter.labels_differ);
      found.textContent = count(now.total, 'group');
      rule?.update();
    },
  });
  function decide(group, name, onward = false) {
    const keep = name === 'duplicates' ? list.cards.get(group.group).kept() : [];
    if (name === 'duplicates' && !keep.length) toast('Mark at least one image to be kept');
    else list.decide([[group, name === 'open' ? null : {decision: name, keep}]], {onward});
  }
  const zoom = (group, from = 0) => openComparison(group, {from, onClose: () => list.goTo(group)});

  const rule = canReview ? makeRule(list) : null;
  if (rule) refill(rulePlace, [rule.element]);
  list.take(first, true);
  leaks.update();
  onState(state => {
    if (state.view !== 'duplicates' || JSON.stringify(readFilter(state)) === JSON.stringify(list.filter)) return;
    list.refresh();
  });
  view = {
    list,
    undo: () => canReview && list.undo(),
    decide: name => canReview && list.current && decide(list.current, name, true),
    mark: number => canReview && list.current && list.cards.get(list.current.group).toggle(number - 1),
    zoom: () => list.current && zoom(list.current),
    select: () => canReview && list.current && select(list.current.images.map(image => image.id)),
  };
}

const drawNothing = list =>
  drawNothingIn(list, {
    icon: 'copy',
    all: 'Every group has a decision. Move the dropped files to tidy the folders.',
    title: 'No near-duplicates',
    text: 'No two images of this gallery are near-duplicates.',
  });
