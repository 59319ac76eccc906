// The dialogs that move the files of dropped near-duplicates to a folder, or show the command that does it.

import {gallery, get, post} from '../core/api.js';
import {openDialog} from '../core/dialog.js';
import {count, fileSize, make, shownText} from '../core/dom.js';
import {quote} from '../core/export_command.js';
import {copyText, toast, toastError} from '../core/toast.js';

const POLL_MILLISECONDS = 500;
/** @typedef {{keep: 'largest' | 'first', keep_where: string | null, bursts: boolean}} Rule */

/** Show what would move, by the rule for open groups, and ask; `done()` is called once it has moved. @param {Rule} rule */
export async function openMove(rule, done) {
  try {
    const facts = await gallery();
    if (!facts.permissions.move) showCommand(facts, rule);
    else confirm(await post('duplicates/move', rule), rule, done);
  } catch (error) {
    toastError(error);
  }
}

/** @param {GalleryFacts} facts @param {Rule} rule */
function showCommand({name, folder}, {keep, keep_where: where, bursts}) {
  const words = ['retrieval duplicates', quote(folder ?? name), '--move-to', quote(`${name}-duplicates`)];
  words.push('--keep', keep, ...(where ? ['--keep-where', quote(where)] : []), ...(bursts ? ['--bursts'] : []));
  openCommand({
    title: 'Move the files of dropped near-duplicates',
    body: [
      make(
        'p',
        'This server changes no files. Run this on the machine of the gallery; it shows what would move, and asks:',
      ),
    ],
    command: words.join(' '),
  });
}

/** @param {{title: string, body: Child[], command: string, actions?: Action[]}} given */
function openCommand({title, body, command, actions = []}) {
  const copy = {text: 'Copy', class: 'primary', run: () => copyText(command, 'Command copied')};
  openDialog({title, body: make('div.column', body, make('pre.command', command)), actions: [...actions, copy]});
}

const describeStaying = staying =>
  Object.entries(staying).map(([reason, number]) =>
    make('p.small', `${count(number, 'image')} not to be moved: ${reason}`),
  );

/** @param {AnswerOf<'duplicates/move', 'post'>} plan @param {Rule} rule */
function confirm(plan, rule, done) {
  const more = plan.images - plan.examples.length;
  openDialog({
    title: `Move ${count(plan.images, 'file')}?`,
    body: make('div.column', [
      make('p', [
        `The dropped near-duplicates, ${fileSize(plan.size_bytes)}, move to `,
        make('code', shownText(plan.folder)),
        '. Open groups are decided by the rule first. Nothing is deleted.',
      ]),
      make('ul.small', [
        plan.examples.map(path => make('li', shownText(path))),
        more > 0 && make('li', `and ${count(more, 'other')}`),
      ]),
      describeStaying(plan.staying),
    ]),
    actions: [
      {text: 'Cancel', class: 'quiet'},
      ...(plan.images ? [{text: 'Move', class: 'primary', run: () => move({...rule, count: plan.images}, done)}] : []),
    ],
  });
}

async function move(body, done) {
  try {
    const {job} = await post('duplicates/move', body);
    let now;
    do {
      await new Promise(resolve => setTimeout(resolve, POLL_MILLISECONDS));
      now = /** @type {any} */ (await get(/** @type {any} */ (`jobs/${job}`)));
    } while (['waiting', 'running'].includes(now.state));
    done();
    if (now.state !== 'done') throw new Error(now.message);
    openCommand({
      title: `${count(now.result.images, 'file')} moved`,
      body: [...describeStaying(now.result.staying), make('p', 'This brings them back:')],
      command: now.result.undo,
      actions: [{text: 'Update the gallery', run: update}],
    });
  } catch (error) {
    toastError(error);
  }
}

async function update() {
  await post('update', new Blob()).then(() => toast('The gallery is being updated'), toastError);
}
