// The start page: a place for photos, some images of the gallery to start from, and its problems.

import {button, count, make, refill, shownText} from '../core/dom.js';
import {gallery, get, getReady, newestGallery, withGallery} from '../core/api.js';
import {keep, readKept} from '../core/kept.js';
import {searchByWords} from './query_changes.js';
import {reloadAfterDecisions} from '../core/decided.js';
import {thumb} from '../core/thumbs.js';
import {linkTo, readState} from '../core/url_state.js';
import {makeDrop} from './upload.js';

const SAMPLES = 12;
const SHOWN_WORDS = 16;
const OFFERED_WORDS = 300; // while someone types
const MOST_COUNTED = 20_000; // images whose duplicates and label issues are computed before a user opens their view
const LOOK_MILLISECONDS = 5000;
const IDLE_MILLISECONDS = 3_600_000; // after which an unused page asks no more, so that its session ends
const MOST_KINDS = 3; // of image problems that are named
const randomSeed = () => Math.floor(Math.random() * 1e6);

/** The start. Calls `sent(tokens)` with photos and `search(id)` with a chosen image. Has `element` and `load()`. */
export function makeStart({sent, search}) {
  const hint = matchMedia('(hover: none)').matches
    ? 'Choose or take a photo. Several at once make one search.'
    : 'Drop photos here, click to choose, or paste. Several at once make one search.';
  const strip = make('ul.samples', [Array.from({length: SAMPLES}, () => make('li.skeleton'))]);
  const added = makeAdded();
  const element = make('section', {class: 'start', 'aria-labelledby': 'start-title'}, [
    added.element,
    make('div.start-ask', [makeDrop({title: 'Find images like yours', hint, sent})]),
    make('div.start-samples', [
      make('div.row.nowrap', [
        make('h2', {id: 'start-title'}, 'Or start from one of these'),
        button('Show others', {icon: 'shuffle', class: 'quiet small push'}, () => load(randomSeed())),
      ]),
      strip,
    ]),
    makeWords(),
    makeFindings(),
  ]);
  let loaded = false;

  async function load(seed) {
    try {
      const {images} = await get('images', {limit: SAMPLES, seed, include: ['label', 'path']});
      loaded = true;
      const drawSample = image => {
        const path = shownText(image.path ?? `image ${image.id}`);
        const given = {title: path, 'aria-label': `Search with ${path}`, onclick: () => search(image.id)};
        return make('li', make('button', given, thumb(image.id, {eager: true})));
      };
      refill(strip, images.map(drawSample));
    } catch (error) {
      refill(strip, make('li.wide.small.soft', error.message));
    }
  }

  return {
    element,
    load: () => {
      added.look(loaded ? newestGallery : gallery);
      return loaded || load(0);
    },
  };
}

/** Images that were added since a visitor looked last, as a link to them; the browser keeps when that was. */
function makeAdded() {
  const element = make('p', {class: 'start-added', role: 'status', hidden: true});
  let usedAt = Date.now();
  for (const kind of ['pointermove', 'keydown']) addEventListener(kind, () => (usedAt = Date.now()), {passive: true});
  const look = async ask => {
    const facts = await ask();
    const key = `seen ${location.pathname} ${facts.name}`;
    const [next, at] = (readKept(key) ?? 'none').split(' ').map(Number);
    const where = `id >= ${next}`;
    // A gallery that was built anew begins with smaller ids.
    const total = next < facts.next_id ? (await get('images', {where, limit: 1})).total : 0;
    const see = () => {
      keep(key, `${facts.next_id} ${Date.now()}`);
      element.hidden = true;
    };
    if (total === 0) return see();
    const text = `${count(total, 'new image')} since ${shownTime(at)}`;
    if (element.textContent !== text) {
      refill(element, make('a', {href: linkTo({filters: [where]}), onclick: see}, text));
    }
    element.hidden = false;
  };
  const tryLook = ask => look(ask).catch(() => {}); // the frame shows what failed
  const isShown = () => !document.hidden && readState().view === 'search' && !element.parentElement?.hidden;
  setInterval(() => isShown() && Date.now() - usedAt < IDLE_MILLISECONDS && tryLook(newestGallery), LOOK_MILLISECONDS);
  return {element, look: tryLook};
}

/** "10:42" of today, "28 Nov, 10:42" of another day. */
function shownTime(milliseconds) {
  const time = new Date(milliseconds);
  const clock = /** @type {const} */ ({hour: '2-digit', minute: '2-digit', hourCycle: 'h23'});
  const isToday = time.toDateString() === new Date().toDateString();
  return time.toLocaleString('en-GB', isToday ? clock : {day: 'numeric', month: 'short', ...clock});
}

/** Words that the gallery has learnt, as buttons, and offered to whoever types into the text box. */
function makeWords() {
  const list = make('ul.chips');
  const title = make('h2', {id: 'words-title'});
  const element = make('section', {class: 'start-words row', 'aria-labelledby': 'words-title', hidden: true}, [
    title,
    list,
  ]);
  const offered = make('datalist', {id: 'known-words'});
  document.body.append(offered);
  const load = async () => {
    const known = await getReady('words').catch(() => null);
    if (!known || known.count === 0) return;
    title.textContent = `Or search by words: this gallery knows ${known.count.toLocaleString('en')}`;
    const draw = ({word}) =>
      make(
        'li',
        button(word, {class: 'small'}, () => searchByWords(word)),
      );
    refill(list, known.words.slice(0, SHOWN_WORDS).map(draw));
    refill(
      offered,
      known.words.slice(0, OFFERED_WORDS).map(({word}) => make('option', {value: word})),
    );
    element.hidden = false;
  };
  withGallery(({images}) => images <= MOST_COUNTED && load());
  return element;
}

/** One picture under many labels is no photo of any of them; of the others the most frequent kind comes first. */
const placeholdersFirst = (one, other) =>
  Number(other.kind === 'placeholder') - Number(one.kind === 'placeholder') || other.count - one.count;

const wordsFor = ({kind, count: images}) =>
  kind === 'placeholder' ? count(images, kind) : `${images.toLocaleString('en')} ${kind.replaceAll('_', ' ')}`;

/** Problems of the gallery as links to the views that solve them, in order; for users who may decide. */
function makeFindings() {
  const list = make('ul.chips');
  const element = make('section', {class: 'start-findings row', 'aria-labelledby': 'findings-title', hidden: true}, [
    make('h2', {id: 'findings-title'}, 'Clean this gallery'),
    list,
  ]);
  const entry = (view, text, extra = {}) =>
    make('li', make('a', {class: 'button small', href: linkTo({view, extra})}, text));
  const load = () =>
    withGallery(async ({permissions, images, labels}) => {
      if (!permissions.review) return;
      const few = images <= MOST_COUNTED;
      const [problems, duplicates, issues] = await Promise.all([
        get('problems').catch(() => null),
        few && getReady('duplicates', {state: 'open', limit: 1}).catch(() => null),
        few && labels.labelled > 0 && getReady('labels/issues', {state: 'open', limit: 1}).catch(() => null),
      ]);
      const bad = problems ? problems.problems.filter(one => one.count > 0).sort(placeholdersFirst) : [];
      const wrong = issues && Math.round(issues.left.errors);
      const unlabelled = issues ? issues.kinds.unlabelled : 0;
      refill(list, [
        bad.length > 0 && entry('problems', `Image problems: ${bad.slice(0, MOST_KINDS).map(wordsFor).join(', ')}`),
        (!duplicates || duplicates.open > 0)
          && entry(
            'duplicates',
            duplicates ? count(duplicates.open, 'group') + ' of near-duplicates' : 'Near-duplicates',
          ),
        labels.labelled > 0
          && wrong !== 0
          && entry('labels', wrong ? `About ${count(wrong, 'wrong label')}` : 'Wrong labels'),
        unlabelled > 0 && entry('labels', `${count(unlabelled, 'image')} without a label`, {kind: 'unlabelled'}),
      ]);
      element.hidden = !list.firstChild;
    });
  load();
  reloadAfterDecisions('search', load);
  return element;
}
