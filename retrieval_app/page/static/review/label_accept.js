// Acceptance in bulk: a dialog that says, for a goal or a threshold, what would be decided and what to expect of it.

import {post} from '../core/api.js';
import {openDialog} from '../core/dialog.js';
import {button, count, debounce, make, refill} from '../core/dom.js';
import {keep, readKept} from '../core/kept.js';
import {toastError} from '../core/toast.js';
import {PROPOSAL} from './label_rows.js';

const GOALS = [90, 95, 98, 99];
const [GOAL, THRESHOLD] = ['accept-goal', 'accept-threshold']; // kept, in percent
const CHANGED = 'The estimate has changed; look again.';
const number = value => Math.round(value).toLocaleString('en');
const exact = share => (share < 1 && share >= 0.9995 ? '>\u00a099.9\u00a0%' : `${(100 * share).toFixed(1)}\u00a0%`);

/**
 * Ask by which goal the verdicts on the chosen issues are accepted, shown or not, and accept them.
 *
 * @param {import('./review_list.js').ReviewList<LabelIssueEntry, LabelDecision>} list
 * @param {Record<string, string>} chosen label, suggested label and kind; empty ones are not asked for
 */
export function openAccept(list, chosen) {
  const filter = Object.fromEntries(Object.entries(chosen).filter(([, value]) => value));
  const proposals = filter.kind === PROPOSAL;
  const goal = makeField(GOAL, {from: 50, to: 99.9, first: 95, name: 'Share of right labels, in percent'});
  const threshold = makeField(THRESHOLD, {from: 50, to: 100, first: 80, name: 'Least probability, in percent'});
  const byGoal = makeChoice(true, goal, [
    'So that at least ',
    goal,
    ` % of the ${proposals ? 'new ' : ''}labels are right`,
  ]);
  const byThreshold = makeChoice(false, threshold, [
    proposals ? 'Proposals that are right with at least ' : 'Labels that are wrong with at least ',
    threshold,
    ' % probability',
  ]);
  const presets = make('div', {class: 'segments', role: 'group', 'aria-label': 'Usual goals'}, [
    GOALS.map(share =>
      button(`${share} %`, {class: 'small', dataset: {share}}, () => {
        goal.value = String(share);
        goal.dispatchEvent(new Event('input'));
        keep(GOAL, goal.value);
      }),
    ),
  ]);
  const note = make('p', {role: 'alert', hidden: true}, make('b', CHANGED));
  const effect = make('div', {class: 'column accept-effect', role: 'status'});
  const accept = button('Accept', {class: 'primary', disabled: true}, () => run());
  const dialog = openDialog({
    title: proposals ? 'Accept the proposed labels' : 'Accept verdicts in bulk',
    body: make('div.column', note, make('div.accept-choice', byGoal.node, presets), byThreshold.node, effect),
  });
  dialog.element.append(
    make(
      'footer.dialog-foot',
      button('Cancel', {class: 'quiet'}, () => dialog.close()),
      accept,
    ),
  );
  /** @type {{body: any, found: Accepted} | null} */
  let preview = null;
  let turn = 0; // what is asked for; answers to earlier questions are ignored
  const readSoon = debounce(read, 200);
  update();

  function makeChoice(isOn, field, words) {
    const radio = make('input', {type: 'radio', name: 'accept-by', checked: isOn, onchange: () => update()});
    field.addEventListener('input', () => {
      radio.checked = true;
      update();
    });
    return {radio, node: make('label.accept-by', radio, make('span', words))};
  }
  function update() {
    turn += 1;
    preview = null;
    accept.disabled = true;
    for (const node of presets.children) {
      const isOn = byGoal.radio.checked && node.getAttribute('data-share') === goal.value;
      node.setAttribute('aria-pressed', String(isOn));
    }
    readSoon();
  }
  async function read() {
    const now = turn;
    const [field, name] = byGoal.radio.checked ? [goal, 'at_least_right'] : [threshold, 'threshold'];
    const body = {...filter, [name]: Number(within(field)) / 100};
    effect.classList.add('stale');
    try {
      const found = await post('labels/accept', body);
      if (now !== turn) return;
      preview = {body, found};
      accept.disabled = !(found.changed + found.set_aside + found.dropped);
      refill(effect, drawEffect(found, {proposals, goal: body.at_least_right ?? null}));
    } catch (error) {
      if (now !== turn) return;
      refill(effect, []);
      toastError(error);
    } finally {
      if (now === turn) effect.classList.remove('stale');
    }
  }
  async function run() {
    if (!preview) return;
    const {body, found} = preview;
    accept.disabled = true;
    const isDone = await list.accept(
      'labels/accept',
      {...body, digest: found.digest},
      describeDone(found, {proposals}),
    );
    if (isDone) return dialog.close();
    note.hidden = false;
    await read();
  }
}

/** A field for a share in percent, kept from one dialog to the next. */
function makeField(name, {from, to, first, name: label}) {
  const kept = Number(readKept(name));
  const field = make('input', {
    class: 'input threshold',
    type: 'number',
    min: from,
    max: to,
    step: 'any',
    value: kept >= from && kept <= to ? kept : first,
    'aria-label': label,
    onchange: () => {
      field.value = within(field);
      keep(name, field.value);
    },
  });
  return field;
}

/** Value of a field, within its bounds. @param {HTMLInputElement} field */
function within({value, min, max}) {
  return String(Math.min(Number(max), Math.max(Number(min), Number(value) || Number(min))));
}

/** What would be decided, and what to expect. @param {Accepted} found */
function drawEffect(found, {proposals, goal}) {
  const {changed, changed_right: right, set_aside: aside, dropped, stay, kept, no_promise: caution} = found;
  const about = changed > 0 && ` (about ${number(right)} of the new labels are right)`;
  const reached = proposals ? (changed ? right / changed : 1) : kept.share;
  const misses = goal !== null && reached < goal - 0.0005;
  return [
    proposals
      ? make('p', [
          make('b', `${count(changed, 'image')} get the proposed label`),
          about,
          '; the others stay without one.',
        ])
      : make('p', [
          make('b', `${count(changed, 'label')} ${changed === 1 ? 'changes' : 'change'}`),
          about,
          ', ',
          make('b', `${count(aside, 'image')} ${aside === 1 ? 'is' : 'are'} set aside`),
          `, ${number(dropped)} ${dropped === 1 ? 'is' : 'are'} dropped, ${number(stay)} stay.`,
        ]),
    make('p', [
      `Right among ${proposals ? 'all labels then' : 'what is kept'}: about `,
      make('b', exact(kept.share)),
      ` [${exact(kept.low)} to ${exact(kept.high)}].`,
      misses && make('b.bad', ` Less than the ${Math.round(1000 * goal) / 10} % asked for: look at what is open.`),
    ]),
    caution && make('p.caution', make('b', 'This cannot be promised: '), `${caution}.`),
    make('p.small.soft', [
      aside > 0
        && 'Images set aside are excluded from training and results until a person decides; Set aside lists them. ',
      'One undo takes all of it back.',
    ]),
  ];
}

/** "17 labels changed, 30 images set aside, 5 dropped". @param {Accepted} found */
function describeDone({changed, set_aside: aside, dropped}, {proposals}) {
  if (proposals) return `${count(changed, 'image')} labelled`;
  return `${count(changed, 'label')} changed, ${count(aside, 'image')} set aside, ${number(dropped)} dropped`;
}
