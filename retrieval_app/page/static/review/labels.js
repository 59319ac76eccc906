// Labels view: label issues, the most probable errors first; one key decides, another one undoes.

import {gallery} from '../core/api.js';
import {button, count, make, refill, shownText} from '../core/dom.js';
import {registerKeys} from '../core/keys.js';
import {isUncertain} from '../core/label_trust.js';
import {isLooking, lookAt, startLook} from './class_look.js';
import {findFirstClass} from './class_order.js';
import {askLabel, confirmMany, enlarge, enlargeNeighbour} from './label_dialogs.js';
import {openAccept} from './label_accept.js';
import {
  confirmed,
  DROP,
  drawConfused,
  drawRow,
  KEEP,
  KINDS,
  LOOK,
  PROPOSAL,
  proposalOf,
  SET_ASIDE,
  wordsFor,
} from './label_rows.js';
import {makeSelection} from './label_selection.js';
import {awaitReady, notice, openView} from '../core/loading.js';
import {makeSample} from './label_sample.js';
import {drawNothingIn, drawReadOnly, drawReviewBar, LABEL_LISTS, LABEL_STATES, readListState} from './review_bar.js';
import {ReviewList} from './review_list.js';
import {drawHint, FILE, KEPT, PAGE} from './label_file.js';
import {toast, toastError} from '../core/toast.js';
import {onState, readState, writeState} from '../core/url_state.js';

const ONE_LABEL = 'All labelled images have the same label: there is no other label to suggest.';
const LOOK_TITLE = 'All images of one class, the least typical first: bad ones are seen at once';
/** @type {{step: number}[]} */
const past = []; // steps of the list and of classes, to undo
let view = null; // what the keys act on, once there is a list

/** Fill the panel. */
export function start(panel) {
  const key = (keys, does, run) => ({keys, does, run: event => (view ? run(event) : false)});
  const keys = [
    key(['j', 'ArrowDown'], 'Next image', () => view.list.step(1)),
    key(['k', 'ArrowUp'], 'Previous image', () => view.list.step(-1)),
    key(['a'], 'Accept the verdict', () => view.act('a')),
    key(['Enter'], 'The same, on a row', event => (event.target.closest('button, a, summary') ? false : view.act('a'))),
    key(['l'], 'Keep the label', () => view.act('l')),
    key(['1', '2', '3'], 'Choose that suggestion', event => view.act(event.key)),
    key(['r'], 'Write another label', () => view.act('r')),
    key(
      ['d'],
      'Set the image aside: no label is certain, excluded from training and results until a person decides',
      () => view.act('d'),
    ),
    key(['x'], 'Drop the image', () => view.act('x')),
    key(['b'], 'Bring the image back: nothing is decided any more', () => view.act('b')),
    key(['c'], 'Confirm what was accepted in bulk', () => view.act('c')),
    key(['u', 'Ctrl+z'], 'Undo the last decision', () => view.act('u')),
    key(['z'], 'Enlarge the image; these keys go on working', () => view.act('z')),
    key(['s'], 'Select, to decide several at once', () => view.act('s')),
    key(['Escape'], 'Select none', () => view.selection.clear()),
  ];
  registerKeys('labels', 'Labels', keys, {when: () => !isLooking()});
  const lead = 'Label issues: labels that look wrong, the most probable errors first.';
  const list = make('div');
  const look = make('div');
  refill(panel, list, look);
  openView(list, {title: 'Labels', lead, draw: open});
  startLook(look, {list, past});
}

async function open(body, about, retry) {
  view = null;
  const described = await gallery();
  if (!described.labels.labelled) {
    refill(body, [
      notice({
        icon: 'label',
        title: 'This gallery has no labels',
        text: 'Build it from folders named after their labels, or with a label file; label issues are then listed here.',
      }),
    ]);
    return;
  }
  const first = await awaitReady(body, 'labels/issues', {
    params: {...readFilter(), limit: PAGE},
    retry,
    what: 'Finding label issues',
    why: 'Each label is predicted from all other images. This happens once for each version of the gallery.',
  });
  if (!first) return;
  about.textContent =
    described.labels.count === 1
      ? ONE_LABEL
      : `${first.caution ? `${first.caution} ` : ''}The most probable label errors come first. ${KEPT}`;
  drawList(body, described, first);
}

/** The estimated number of label errors that are left, and whether it still pays to go on. */
function describeLeft({checked, open: listed, left}, filter) {
  const {errors, in_next: inNext, next, low, high, as_predicted: expected, looked_at: looked} = left;
  if (filter.kind === PROPOSAL) {
    const right = Math.round(errors).toLocaleString('en');
    return `${count(listed, 'image')} without a label; about ${right} of the proposed labels are estimated to be right.`;
  }
  const some = errors < 0.5 ? 'Hardly any' : `About ${Math.round(errors).toLocaleString('en')}`;
  const isChosen = filter.label || filter.suggested || filter.kind;
  const labels = isChosen ? 'open labels of this choice' : `${checked.toLocaleString('en')} labels`;
  const pays = next && inNext < next / 10 ? ' It hardly pays to go on.' : '';
  const range = isChosen
    ? ''
    : ` [${Math.round(low).toLocaleString('en')} to ${Math.round(high).toLocaleString('en')}]`;
  const seen = looked
    ? `Decided by people: ${expected.toLocaleString('en')} of ${looked.toLocaleString('en')} as predicted. `
    : '';
  return `${seen}${some} of the ${labels} are still estimated to be wrong${range}; ${count(listed, 'open issue')}.${pays}`;
}

/** @type {(state?: State) => any} */
const readChoice = (state = readState()) => ({
  label: state.extra.label ?? '',
  suggested: state.extra.suggested ?? '',
  kind: state.extra.kind ?? '',
});
const readFilter = (state = readState()) => ({state: readListState(state, LABEL_LISTS), ...readChoice(state)});
const choose = change => writeState({extra: {...readState().extra, ...change}});

function drawList(body, described, first) {
  const canReview = described.permissions.review;
  const {names} = described.labels;
  const given = make('select', {
    class: 'select',
    'aria-label': 'Given label',
    onchange: () => choose({label: given.value, suggested: ''}),
  });
  const kind = make('select', {
    class: 'select',
    'aria-label': 'Kind of issue',
    onchange: () => choose({kind: kind.value}),
  });
  const pair = make('select', {
    class: 'select',
    'aria-label': 'Given and suggested label',
    onchange: () => {
      const [label, suggested] = pair.value ? JSON.parse(pair.value) : [list.filter.label, ''];
      choose({label, suggested});
    },
  });
  const propose = button('Propose labels', {hidden: true}, () =>
    choose({label: '', suggested: '', kind: list.filter.kind === PROPOSAL ? '' : PROPOSAL}),
  );
  const sample = makeSample({canReview, choose: state => choose({state, label: '', suggested: '', kind: ''})});
  const bar = drawReviewBar({
    canReview,
    states: LABEL_STATES,
    filters: [
      given,
      pair,
      propose,
      button('Look at classes', {icon: 'photo', title: LOOK_TITLE}, () => findFirstClass().then(lookAt, toastError)),
      sample.open,
    ],
    file: FILE,
    on: {state: state => choose({state: state === 'open' ? '' : state}), undo: () => list.undo()},
  });
  const found = make('p', {role: 'status'});
  const option = (value, text, selected) => make('option', {value, selected}, text);
  const left = make('p', {class: 'small soft', role: 'status'});
  const confused = make('p.small.soft', {hidden: true});
  const hint = make('span.small.soft.push.review-hint', drawHint());
  const place = make('div.issue-rows');
  const more = make('div.more-line');

  const list = new ReviewList({
    path: 'labels/issues',
    area: 'labels',
    size: PAGE,
    readFilter,
    place,
    more,
    words: wordsFor,
    keyOf: item => item.id,
    idsOf: item => [item.id],
    drawItem: /** @param {LabelIssueEntry} item */ item =>
      drawRow(item, {
        canReview,
        on: {
          focus: target => list.setCurrent(target),
          zoom,
          zoomNeighbour: enlargeNeighbour,
          decide: (target, decision) => list.decide([[target, decision]]),
          ask: target => ask(target),
          select: selection.toggle,
        },
      }),
    drawNothing,
    pack: changes => ({
      decisions: changes.map(([item, decision]) => ({
        image_id: item.id,
        label_seen: item.label,
        ...(decision ?? {decision: 'open', label: null}),
      })),
    }),
    onChange(now, answer) {
      if (answer) drawOptions(answer);
      if (answer) drawProgress(answer);
      bar.update({...now.tally, state: now.filter.state});
      found.textContent = `${count(now.total, 'image')}${whichOf(now.filter)}`;
      accept.disabled = now.tally.open === 0;
      line.hidden = now.filter.state === 'sample';
      if (answer) sample.update(now);
    },
    onRecount(answer) {
      drawProgress(answer);
      sample.update(list);
    },
    onMove: item => view?.zoomed?.show(item),
    isBusy: () => !selection.element.hidden,
    past,
  });
  const accept = button('Accept in bulk…', {icon: 'check', class: 'small', disabled: true}, () =>
    openAccept(list, readChoice()),
  );
  const selection = makeSelection(list, {
    accept: acceptMany,
    decide: (items, decision) => list.decide(items.map(item => [item, decision])),
    KEEP,
    SET_ASIDE,
    DROP,
  });
  const line = make('div.row.review-line', found, kind, canReview && accept, hint);
  refill(body, [
    drawReadOnly(canReview),
    bar.element,
    sample.element,
    left,
    confused,
    line,
    place,
    more,
    selection.element,
  ]);

  function drawProgress(answer) {
    left.textContent = list.filter.state === 'sample' ? '' : describeLeft(answer, list.filter);
  }

  function drawOptions({pairs, kinds, confused_classes: pairsConfused}) {
    const {filter} = list;
    drawConfused(confused, pairsConfused, choose);
    const isProposing = filter.kind === PROPOSAL;
    propose.hidden = !kinds[PROPOSAL] && !isProposing;
    given.hidden = pair.hidden = isProposing;
    propose.textContent = isProposing
      ? 'Back to label issues'
      : `Propose labels (${kinds[PROPOSAL].toLocaleString('en')})`;
    refill(kind, [
      option('', 'All kinds of issues', !filter.kind),
      Object.entries(KINDS).map(([name, {title}]) => option(name, `${title} (${kinds[name]})`, name === filter.kind)),
    ]);
    const labels = [...new Set(pairs.map(entry => entry.label))]; // in the order of the pairs: the most issues first
    refill(given, [
      option('', 'All labels', !filter.label),
      labels.map(label => option(label, shownText(label), label === filter.label)),
    ]);
    const offered = pairs.filter(entry => !filter.label || entry.label === filter.label).slice(0, 300);
    refill(pair, [
      option('', 'All suggestions', !filter.suggested),
      offered.map(entry =>
        option(
          JSON.stringify([entry.label, entry.suggested]),
          `${shownText(entry.label)} → ${shownText(entry.suggested)} (${entry.count})`,
          entry.label === filter.label && entry.suggested === filter.suggested,
        ),
      ),
    ]);
  }
  function acceptMany(items) {
    const changes = items.map(item => [item, proposalOf(item)]).filter(([, decision]) => decision);
    if (!changes.length) return toast(`${LOOK}. Decide these yourself.`);
    const run = () => {
      list.decide(changes);
      selection.clear();
    };
    const decisions = changes.map(([, decision]) => decision);
    confirmMany(decisions, run, {open: items.length - changes.length});
  }
  /** @type {(item: LabelIssueEntry, label: string) => LabelDecision} */
  const labelled = (item, label) => (label === item.label ? KEEP : {decision: 'change', label});
  const ask = (item, onward = false) =>
    askLabel(item, names, label => list.decide([[item, labelled(item, label)]], {onward}));
  function zoom(item) {
    list.setCurrent(item);
    let seen = item; // the focus goes back to the row that it came from, which makes that the current one
    const picture = enlarge(item, {
      act,
      onClose: () => {
        view.zoomed = null;
        if (seen !== item) list.goTo(seen);
      },
    });
    view.zoomed = {
      show(now) {
        seen = now;
        picture.show(now);
      },
    };
  }
  function act(name) {
    const item = list.current;
    if (name === 'u' && canReview) list.undo();
    if (name === 'u' || !item) return;
    if (name === 'j' || name === 'k') list.step(name === 'j' ? 1 : -1);
    else if (name === 'z') zoom(item);
    else if (canReview) decide(item, name);
  }
  function bringBack(item) {
    if (item.decision) list.decide([[item, null]], {onward: true});
    else toast('Nothing is decided about this image.');
  }
  function confirm(item) {
    if (isUncertain(item.decision)) list.decide([[item, confirmed(item.decision)]], {onward: true});
    else toast('Only what was accepted in bulk is to be confirmed. A accepts the verdict, L keeps the label.');
  }
  function decide(item, name) {
    const suggestion = item.suggestions[Number(name) - 1];
    const on = decision => list.decide([[item, decision]], {onward: true});
    const proposal = proposalOf(item);
    if (name === 'a' && proposal) on(proposal);
    else if (name === 'a') toast(`${LOOK}. L keeps the label, R changes it, D sets the image aside, X drops it.`);
    else if (name === 'l') on(KEEP);
    else if (name === 'd') on(SET_ASIDE);
    else if (name === 'x') on(DROP);
    else if (name === 'b') bringBack(item);
    else if (name === 'c') confirm(item);
    else if (name === 'r') ask(item, true);
    else if (name === 's') selection.toggle(item, !selection.has(item));
    else if (suggestion) on(labelled(item, suggestion.label));
  }

  list.take(first, true);
  onState(state => {
    if (state.view !== 'labels' || JSON.stringify(readFilter(state)) === JSON.stringify(list.filter)) return;
    selection.clear();
    list.refresh();
  });
  view = {list, act, selection, zoomed: null};
}

function whichOf({label, suggested, kind}) {
  const which = kind ? `, ${KINDS[kind].title.toLowerCase()}` : '';
  if (suggested) return `${which}, ${shownText(label)} → ${shownText(suggested)}`;
  return label ? `${which} labelled ${shownText(label)}` : which;
}

function drawNothing(list) {
  const {filter} = list;
  if (filter.state === 'sample') {
    return notice({
      icon: 'check',
      title: 'All images drawn so far are answered',
      text: 'Undo takes the last answer back.',
    });
  }
  const chosen = filter.label || filter.suggested || filter.kind;
  const clear =
    chosen && button('Show all labels', {class: 'primary'}, () => choose({label: '', suggested: '', kind: ''}));
  if (chosen && !['decided', 'set_aside'].includes(filter.state)) {
    const text = 'No open label issue matches this choice.';
    return notice({icon: 'check', title: 'Nothing left here', text}, clear);
  }
  return drawNothingIn(list, {
    icon: 'label',
    all: 'Every label issue has a decision. Download the label file to use the decisions.',
    title: 'No label issues',
    text: 'No label looks wrong. The probabilities are calibrated on this gallery by simulated label noise.',
    more: clear,
  });
}
