// What a view shows while the server computes, when that failed, and when there is nothing: the same in every view.

import {ApiError, getReady, isAborted} from './api.js';
import {button, icon, make, percent, refill, sentence} from './dom.js';

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
 * Fill a view's panel: its head, and what `draw(body, about, retry)` makes of the rest, where a failure of it is told.
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
  const words = make('p.small.figures');
  const box = make('div.notice', icon(drawing, 28), make('h2', what), make('p', why), track, words);
  const shown = setTimeout(() => refill(place, box), 250); // what is ready at once shows no progress
  try {
    return await getReady(path, params, {
      signal,
      onProgress: ({done, total}) => {
        if (total > 0) {
          track.style.setProperty('--share', String(done / total));
          track.setAttribute('aria-valuenow', String(Math.round((100 * done) / total)));
          words.textContent = percent(done / total);
        } else words.textContent = 'Waiting for its turn';
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

/** A failure in the place of the content, with a way to try again. @param {Error} error */
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
