// The frame: which view is shown, the header's facts, the theme.
//
// A view is an entry of `views.json`, which the server writes into the frame's links, and a module with `start(panel)`,
// called once, when it is first shown. Changes of state while it is shown: `onState`.

import {button, count, icon, make, refill} from './core/dom.js';
import {gallery, get, withGallery} from './core/api.js';
import {showKeys} from './core/keys.js';
import {notice} from './core/loading.js';
import {applySavedTheme, themeButton} from './core/theme.js';
import {toastError} from './core/toast.js';
import {followLink, onState, readState} from './core/url_state.js';
import {welcome} from './core/welcome.js';

let frame = null;
let shown = null;
const started = new Set();
const scrolled = new Map();
const links = new Map();

/** Take over the frame that the server sent. */
export function start(element) {
  frame = element.querySelector('.app-frame');
  if (!frame) return;
  applySavedTheme();
  frame.querySelector('.needs-server')?.remove();
  for (const link of frame.querySelectorAll('nav a')) link.prepend(icon(link.dataset.icon, 19));
  const keys = {icon: 'keyboard', iconOnly: true, class: 'quiet keys-button', title: 'Keyboard (?)'};
  frame.querySelector('.tools').append(themeButton(), button('Keyboard', keys, showKeys));
  frame.querySelector('.sign-out')?.addEventListener('click', signOut);
  frame.addEventListener('click', followLink);
  frame.querySelector('.skip').addEventListener('click', event => {
    event.preventDefault();
    panelOf(shown).focus();
  });
  onState(showView);
  showView(readState());
  welcome(frame.querySelector('.views'), {dismissed: () => panelOf(shown).focus({preventScroll: true})});
  gallery().then(showFacts, toastError);
  addEventListener('gallery-changed', () => withGallery(showFacts));
}

/** End the session on the server; what comes next is the page that asks for a token. */
async function signOut() {
  try {
    const sent = await fetch('./', {method: 'POST', body: new URLSearchParams({sign_out: ''}), redirect: 'manual'});
    if (sent.status >= 400) throw new Error('The server did not sign you out. Try again.');
    location.assign('./');
  } catch (error) {
    toastError(error);
  }
}

function showFacts(facts) {
  frame.querySelector('h1 a').textContent = facts.name;
  const words = [count(facts.images, 'image'), facts.labels.count > 0 && count(facts.labels.count, 'label')];
  frame.querySelector('.facts').textContent = words.filter(Boolean).join(' · ');
  frame.querySelector('.facts').title =
    `Model: ${facts.model.backbone}, ${facts.model.method}, ${facts.embedding_dim} numbers an image.`
    + ` Version ${facts.version}.`;
}

function showView(state) {
  links.set(state.view, location.search);
  if (state.view === shown) return;
  const before = shown;
  shown = state.view;
  if (before !== null) scrolled.set(before, scrollY);
  for (const panel of frame.querySelectorAll('.view')) panel.hidden = panel.id !== `view-${shown}`;
  for (const link of frame.querySelectorAll('nav a')) {
    const {view} = link.dataset;
    if (view === shown) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    link.href = (view !== shown && links.get(view)) || `?view=${view}`; // a view is found again as it was left
  }
  if (before !== null) scrollTo(0, scrolled.get(shown) ?? 0);
  if (before !== null && isFocusLost()) panelOf(shown).focus({preventScroll: true});
  if (!started.has(shown)) startView(shown, panelOf(shown));
}

/** True if what was pressed is no longer there. */
function isFocusLost() {
  const {activeElement} = document;
  return activeElement === document.body || activeElement?.closest('[hidden]') !== null;
}

async function startView(view, panel) {
  started.add(view);
  const waiting = make('div.waiting', make('span', {class: 'spin', role: 'status', 'aria-label': 'Loading'}));
  panel.append(waiting);
  try {
    const module = await import(`./${linkOf(view).dataset.module}`);
    waiting.remove();
    await module.start(panel);
  } catch (error) {
    started.delete(view);
    console.error(error);
    const text = error instanceof TypeError ? await askWhy() : error.message;
    const again = button('Retry', {class: 'primary'}, () => location.reload());
    refill(panel, notice({icon: 'warning', size: 40, title: 'This view could not be opened', text, bad: true}, again));
  }
}

/** Why a module failed to load, by the answer of the server to another request. */
async function askWhy() {
  try {
    await get('gallery');
    return 'The server sent no part of it. Try again.';
  } catch (error) {
    return error.message;
  }
}

const linkOf = view => frame.querySelector(`nav a[data-view="${view}"]`);

const panelOf = view => frame.querySelector(`#view-${view}`);

start(document);
