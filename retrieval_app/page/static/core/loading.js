// What a view shows while the server computes, when that failed, and when there is nothing: the same in every view.

import {ApiError, getReady, isAborted} from './api.js';
import {button, count, icon, make, percent, refill, sentence} from './dom.js';

const WAITING = 'Waiting for its turn';

/** What is computed first, by its name in the API. @type {Record<string, string>} */
const FIRST = {
  calibration: 'Calibration first',
  duplicates: 'Near-duplicates first',
  label_issues: 'Label issues first',
  updated_issues: 'Label issues first',
  quality: 'Quality first',
  map: 'Map first',
  words: 'Words first',
};

/**
 * A box in place of content: `notice({icon: 'photo', title, text}, button, …)`.
 *
 * @param {{
 *   icon?: string, size?: number, title: string, text?: Child, bad?: boolean, role?: string | null,
 * }} given
 * @param {...Child} more
 */
export function notice({icon: name = 'info', size = 28, title, text, bad, role = bad ? 'alert' : null}, ...more) {
  return make('div', {class: `notice ${bad ? 'error' : ''}`, role}, [
    name && icon(name, size),
    make('h2', title),
    text && make('p', text),
    more,
  ]);
}

/**
 * Fill a view's panel: its head, and the rest by `draw(body, about, retry)`, whose failure is shown.
 * Returns the function that draws it again.
 *
 * @param {HTMLElement} panel
 * @param {{
 *   title: string, lead: string, kind?: string,
 *   draw: (body: HTMLElement, about: HTMLElement, retry: () => void) => Promise<void>,
 * }} given
 */
export function openView(panel, {title, lead, kind = '', draw}) {
  const about = make('p.lead', lead);
  const body = make('div', {class: kind});
  refill(panel, make('div.view-head', make('h2', title), about), body);
  const load = () => draw(body, about, load).catch(error => isAborted(error) || showFailure(body, error, load));
  load();
  return load;
}

/**
 * Show in `place` how far the server is with `path`, then give its answer; null after a failure, which is shown.
 *
 * @template {string} Path
 * @param {HTMLElement} place
 * @param {Path} path
 * @param {{
 *   params?: ParametersOf<Path, 'get'>, what: string, why: string, drawing?: string,
 *   retry: () => void, signal?: AbortSignal,
 * }} given
 * @returns {Promise<AnswerOf<Path, 'get'> | null>}
 */
export async function awaitReady(place, path, {params, what, why, drawing = 'chart', retry, signal}) {
  const track = make('div', {class: 'progress', role: 'progressbar', 'aria-label': what});
  const words = make('p.small.figures', WAITING);
  const box = make('div.notice', icon(drawing, 28), make('h2', what), make('p', why), track, words, drawMeanwhile());
  const shown = setTimeout(() => refill(place, box), 250); // what is ready at once shows no progress
  let left = makeEstimate();
  /** @type {string | null} */
  let now = null;
  try {
    return await getReady(path, params, {
      signal,
      onProgress: ({done, total, behind}) => {
        if (behind !== now) [now, left] = [behind, makeEstimate()];
        if (behind) {
          const far = total > 0 ? [percent(done / total), left(done / total)] : [];
          words.textContent = [FIRST[behind], ...far].filter(Boolean).join(' · ');
        } else if (total > 0) {
          track.style.setProperty('--share', String(done / total));
          track.setAttribute('aria-valuenow', String(Math.round((100 * done) / total)));
          words.textContent = [percent(done / total), left(done / total)].filter(Boolean).join(' · ');
        } else words.textContent = WAITING;
      },
    });
  } catch (error) {
    clearTimeout(shown);
    if (!isAborted(error)) showFailure(place, error, retry);
    return null;
  } finally {
    clearTimeout(shown);
  }
}

/** What can be done until it is there; an audit's page has nothing to search. */
function drawMeanwhile() {
  const search = /** @type {HTMLAnchorElement?} */ (document.querySelector('nav a[data-view="search"]'));
  return make('p.small', [
    'It opens here by itself as soon as it is done. ',
    search && make('a', {href: search.href}, 'Searching works meanwhile'),
    search && '.',
  ]);
}

/** Function that estimates the remaining time from the shares done that it gets one after the other. */
function makeEstimate() {
  /** @type {{share: number, at: number} | null} */
  let first = null;
  return share => {
    first ??= {share, at: performance.now()};
    const seconds = (performance.now() - first.at) / 1000;
    const gained = share - first.share;
    if (seconds < 2 || gained < 0.03) return '';
    return `about ${shownSeconds(((1 - share) * seconds) / gained)} left`;
  };
}

/** "20 seconds", "3 minutes": rounded, as it is an estimate. */
const shownSeconds = seconds =>
  seconds < 55 ? count(Math.max(5, 5 * Math.round(seconds / 5)), 'second') : count(Math.round(seconds / 60), 'minute');

/** Failure in place of the content, with a button to try again. @param {Error} error */
export function showFailure(place, error, retry) {
  if (!(error instanceof ApiError)) console.error(error);
  refill(place, [
    notice(
      {
        icon: 'warning',
        title: 'This could not be shown',
        text: sentence(error.message || 'Something went wrong.'),
        bad: true,
      },
      button('Try again', {class: 'primary'}, retry),
    ),
  ]);
}

/** The filter expression that keeps one label, or several. @param {...string} labels */
export function whereLabel(...labels) {
  const quoted = labels.map(label => `'${label.replaceAll("'", "''")}'`);
  return quoted.length === 1 ? `label = ${quoted[0]}` : `label IN (${quoted.join(', ')})`;
}
