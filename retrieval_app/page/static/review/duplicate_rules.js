// All groups of near-duplicates at once: a rule that says which image is kept, and leaks between splits.

import {get, post} from '../core/api.js';
import {openDialog} from '../core/dialog.js';
import {button, count, debounce, make, refill, sentence, shownText} from '../core/dom.js';
import {toast, toastError} from '../core/toast.js';
import {openMove} from './move_files.js';

/**
 * The rule and its button; `update` counts again what it would decide.
 *
 * @param {import('./review_list.js').ReviewList<GroupEntry, GroupDecision>} list
 */
export function makeRule(list) {
  const rule = make('select', {class: 'select', 'aria-label': 'Image to keep', onchange: () => update()}, [
    make('option', {value: 'largest'}, 'the largest file'),
    make('option', {value: 'first'}, 'the first image'),
  ]);
  const where = make('input', {
    class: 'input',
    'aria-label': 'Condition for the image to keep',
    placeholder: 'that meets, such as path LIKE \u201coriginals/%\u201d',
    oninput: () => update(),
  });
  const bursts = make('input', {type: 'checkbox', onchange: () => update()});
  const words = make('span', {role: 'status'});
  const apply = button('Apply…', {class: 'small', disabled: true}, () => {
    const {body, found} = preview;
    openDialog({
      title: `Keep one image of each of ${count(found.groups, 'group')}?`,
      body: make('p', [
        `${sentence(describe(found))}. Dropped images leave the results; their tags go to the kept image, and their `,
        'label, if it has none. One undo takes all of it back.',
      ]),
      actions: [
        {text: 'Cancel', class: 'quiet'},
        {
          text: 'Apply',
          class: 'primary',
          run: () =>
            list.accept('duplicates/apply', {...body, count: found.groups}, describe(found, 'decided', 'dropped')),
        },
      ],
    });
  });
  const move = button('Move files…', {class: 'small'}, () => openMove(readRule(), () => list.refresh()));
  /** @type {{body: import('./move_files.js').Rule, found: any}} */
  let preview;
  let turn = 0;
  /** @returns {import('./move_files.js').Rule} */
  const readRule = () => ({
    keep: /** @type {'largest' | 'first'} */ (rule.value),
    keep_where: where.value.trim() || null,
    bursts: bursts.checked,
  });
  const update = debounce(async () => {
    const now = (turn += 1);
    apply.disabled = true;
    const body = readRule();
    try {
      const found = await post('duplicates/apply', body);
      if (now !== turn) return;
      preview = {body, found};
      words.textContent = describe(found);
      apply.disabled = !found.groups;
    } catch (error) {
      if (now === turn) words.textContent = sentence(error.message);
    }
  }, 300);
  const also = make(
    'label.row',
    {title: 'Different shots of one scene, not copies of one picture'},
    bursts,
    'bursts too',
  );
  return {
    element: make('div.row.accept-line', 'Keep of every open group', rule, where, also, apply, move, words),
    update,
  };
}

/** "decides 12 groups, drops 15 images; 3 groups with different labels and 1 burst stay open". */
function describe({groups, dropped, differing, bursts, unmatched}, decides = 'decides', drops = 'drops') {
  const left = [
    differing && `${count(differing, 'group')} with different labels`,
    bursts && `${count(bursts, 'burst')} of different shots`,
    unmatched && `${count(unmatched, 'group')} without such an image`,
  ].filter(Boolean);
  const stay = left.length ? `; ${left.join(' and ')} stay open` : '';
  return `${decides} ${count(groups, 'group')}, ${drops} ${count(dropped, 'image')}${stay}`;
}

/** Text about leaks between splits, with what can be done; hidden where there is no split. @param {() => void} changed */
export function makeLeaks(changed, {canReview}) {
  const element = make('div.row.accept-line', {hidden: true});
  async function update() {
    let found;
    try {
      found = await get('leaks', {});
    } catch {
      element.hidden = true; // the list says why
      return;
    }
    element.hidden = !found.leaks;
    const splits = Object.keys(found.splits);
    const largest = splits.reduce((one, other) => (found.splits[other] > found.splits[one] ? other : one), splits[0]);
    const option = (action, value) =>
      make(
        'option',
        {value: JSON.stringify([action, value]), selected: action === 'drop' && value === largest},
        action === 'move' ? `Move all to ${shownText(value)}` : `Drop those of ${shownText(value)}`,
      );
    const what = make('select', {class: 'select', 'aria-label': 'What to do with leaks'}, [
      splits.map(value => option('move', value)),
      splits.map(value => option('drop', value)),
    ]);
    refill(element, [
      make(
        'span',
        `${count(found.leaks, 'leak')}: ${count(found.images, 'image')} nearly the same in several splits `
          + `(${splits.map(shownText).join(', ')}).`,
      ),
      canReview && what,
      canReview && button('Apply…', {class: 'small'}, () => confirm(found, what)),
    ]);
  }
  function confirm(found, what) {
    const [action, value] = JSON.parse(what.value);
    openDialog({
      title: `${what.selectedOptions[0].textContent}?`,
      body: make('p', `Of ${count(found.leaks, 'leak')}. Undo takes it back in one step; files stay as they are.`),
      actions: [
        {text: 'Cancel', class: 'quiet'},
        {text: 'Apply', class: 'primary', run: () => fix({action, value, count: found.leaks})},
      ],
    });
  }
  async function fix(body) {
    try {
      const {step, changed: leaks} = await post('leaks', body);
      const undo = async () => {
        await post(body.action === 'move' ? 'tags/undo' : 'duplicates/undo', {step}).catch(toastError);
        done();
      };
      toast(`${count(leaks, 'leak')} fixed`, {kind: 'good', action: {text: 'Undo', run: undo}});
      done();
    } catch (error) {
      toastError(error);
    }
  }
  function done() {
    update();
    changed();
  }
  return {element, update};
}
