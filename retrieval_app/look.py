"""How the page looks and listens: theme, style sheet, icon, and the scripts of its panels. Nothing is fetched."""

from __future__ import annotations

import gradio as gr

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">'
    '<rect width="24" height="24" rx="6" fill="#4f46e5"/>'
    '<g fill="none" stroke="#fff" stroke-width="2.2" stroke-linecap="round"><circle cx="10.5" cy="10.5" r="5"/>'
    '<path d="m14.5 14.5 4 4"/></g></svg>'
)


def make_theme() -> gr.themes.Base:
    """A quiet theme on the fonts that every system has."""
    fonts = [gr.themes.Font(name) for name in ("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "Consolas", "monospace")]
    theme = gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=fonts, font_mono=mono)
    return theme.set(body_background_fill="*neutral_50")


# Events bubble, so one listener outlives every redraw of the panel.
PICK_SCRIPT = """
element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  if ('shuffle' in button.dataset) { trigger('shuffled'); return; }
  if ('back' in button.dataset) { trigger('returned'); }
  else { trigger('picked', {id: Number(button.dataset.id)}); }
  const narrow = matchMedia('(max-width: 760px)').matches;
  document.getElementById(narrow ? 'query' : 'layout').scrollIntoView({block: 'start'});
});
const mark = image =>
  image.closest('button, .picture').classList.toggle('lost', image.complete && !image.naturalWidth);
element.addEventListener('error', event => { if (event.target.tagName === 'IMG') mark(event.target); }, true);
watch('value', () => element.querySelectorAll('img').forEach(image => image.complete && mark(image)));
"""

UPLOAD_SCRIPT = """
const zone = element.querySelector('.drop');
const input = zone.querySelector('input');
const limit = Number(input.dataset.limit);
async function send(file) {
  if (!file || zone.classList.contains('sending')) return;
  if (file.size > limit) {
    const size = (file.size / 1048576).toFixed(1), most = limit / 1048576;
    trigger('refused', {message: `${file.name}: ${size} MB, at most ${most} MB are taken; use a smaller copy`});
    return;
  }
  zone.classList.add('sending');
  try {
    const answer = await fetch('query?name=' + encodeURIComponent(file.name), {method: 'POST', body: file});
    const body = await answer.json();
    if (answer.ok) { trigger('sent', {ref: body.ref}); } else { trigger('refused', {message: body.message}); }
  } catch (error) {
    trigger('refused', {message: 'The server gave no answer. Is it still running?'});
  } finally {
    zone.classList.remove('sending');
    input.value = '';
  }
}
input.addEventListener('change', () => send(input.files[0]));
for (const name of ['dragenter', 'dragover', 'dragleave', 'drop']) {
  zone.addEventListener(name, event => {
    event.preventDefault();
    zone.classList.toggle('over', name === 'dragenter' || name === 'dragover');
    if (name === 'drop') send(event.dataTransfer.files[0]);
  });
}
document.addEventListener('paste', event => send(event.clipboardData?.files[0]));
"""

CSS = """
.gradio-container { --gap: 14px; --card: var(--block-background-fill); --edge: var(--border-color-primary);
  --soft: var(--neutral-500); --accent: var(--primary-600); --hover: var(--primary-400); }
.dark .gradio-container, .gradio-container.dark { --accent: var(--primary-400); --soft: var(--neutral-400); }
.gradio-container .main.fillable { padding: 0 24px 24px; max-width: 1680px; margin: 0 auto; }
.gradio-container main.contain { padding: 0; }
.gradio-container .html-container { padding: 0; }
#layout { align-items: flex-start; gap: 24px; flex-wrap: nowrap; scroll-margin-top: 12px; }
#side { flex: 0 0 300px !important; gap: var(--gap); position: sticky; top: 16px; }
#main { min-width: 0 !important; }
#query { scroll-margin-top: 12px; }
#query:not(:has(.query)) { display: none; }
#side .form { border: 1px solid var(--edge); border-radius: 14px; overflow: hidden; }

.top { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 18px; padding: 18px 0 14px;
  border-bottom: 1px solid var(--edge); }
.top h1 { display: flex; align-items: center; gap: 9px; font-size: 20px; font-weight: 650; margin: 0;
  letter-spacing: -.01em; overflow-wrap: anywhere; }
.top svg { color: var(--accent); flex: none; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 0; padding: 0; font-size: 13px;
  color: var(--soft); }

.drop { position: relative; display: flex; flex-direction: column; align-items: center; gap: 3px;
  padding: 20px 14px; border: 1.5px dashed var(--neutral-400); border-radius: 14px; background: var(--card);
  text-align: center; cursor: pointer; transition: border-color .15s, background .15s; }
.drop svg { color: var(--accent); margin-bottom: 4px; }
.drop strong { font-size: 15px; font-weight: 600; }
.drop span { font-size: 12.5px; color: var(--soft); }
.drop input { position: absolute; inset: 0; opacity: 0; cursor: pointer; width: 100%; }
.drop:hover, .drop.over, .drop:focus-within { border-color: var(--hover); }
.drop.over { background: color-mix(in srgb, var(--accent) 9%, var(--card)); }
.drop .busy, .drop.sending .idle { display: none; }
.drop.sending .busy { display: block; animation: pulse 1s infinite alternate; }
.drop:focus-within, .card:focus-visible, .strip button:focus-visible, .quiet:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }

.query { display: flex; gap: 12px; padding: 10px; border: 1px solid var(--edge); border-radius: 14px;
  background: var(--card); }
.query .picture { width: 104px; height: 104px; flex: none; border-radius: 9px; }
.query .about { display: flex; flex-direction: column; align-items: flex-start; gap: 5px; min-width: 0; flex: 1; }
.kicker { font-size: 11.5px; font-weight: 600; color: var(--soft); text-transform: uppercase;
  letter-spacing: .05em; }
.quiet { font-size: 13px; font-weight: 550; color: var(--accent); background: none; border: 0; padding: 2px 0;
  cursor: pointer; }
.quiet:hover { text-decoration: underline; }
.back { margin-top: auto; }

.samples { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 7px; }
.samples h2 { margin: 0; font-size: 13.5px; font-weight: 600; }
.samples .strip { display: grid; grid-template-columns: repeat(4, 1fr); gap: 6px; width: 100%; }
.strip button { aspect-ratio: 1; padding: 0; border: 0; border-radius: 9px; overflow: hidden; cursor: pointer;
  background: var(--background-fill-secondary); }
.strip img { width: 100%; height: 100%; object-fit: cover; transition: transform .2s; }
.strip button:hover img { transform: scale(1.06); }

.found { margin: 2px 0 12px; font-size: 14px; font-weight: 600; }
.found span { color: var(--soft); font-weight: 400; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: var(--gap); margin: 0;
  padding: 0; list-style: none; }
.grid li { min-width: 0; margin: 0; }
.card { display: flex; flex-direction: column; gap: 6px; width: 100%; padding: 0 0 10px; text-align: left;
  border: 1px solid var(--edge); border-radius: 14px; background: var(--card); overflow: hidden; cursor: pointer;
  color: inherit; font: inherit; transition: border-color .15s, box-shadow .15s; }
.card:hover { border-color: var(--hover); box-shadow: 0 4px 16px rgb(0 0 0 / .1); }
.picture { position: relative; display: block; overflow: hidden; background: var(--background-fill-secondary); }
.card .picture { aspect-ratio: 1; width: 100%; }
.picture img { width: 100%; height: 100%; object-fit: cover; display: block; margin: 0; }
.picture .gone { display: none; position: absolute; inset: 0; place-items: center; font-size: 12.5px;
  color: var(--soft); }
.lost img { visibility: hidden; }
.lost .gone { display: grid; }
.rank { position: absolute; top: 8px; left: 8px; min-width: 22px; padding: 1px 6px; border-radius: 99px;
  text-align: center; font-size: 11.5px; font-weight: 600; line-height: 18px; color: #fff;
  background: rgb(15 23 42 / .68); }
.line { display: flex; align-items: center; gap: 8px; padding: 0 10px; min-width: 0; }
.score { font-size: 13.5px; font-weight: 650; font-variant-numeric: tabular-nums; }
.chip { min-width: 0; max-width: 100%; padding: 0 8px; border-radius: 99px; font-size: 12px; line-height: 20px;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--soft);
  background: var(--background-fill-secondary); border: 1px solid var(--edge); }
.line .chip { margin-left: auto; }
.chip.same { color: var(--accent); border-color: color-mix(in srgb, var(--accent) 45%, transparent);
  background: color-mix(in srgb, var(--accent) 10%, transparent); }
.path { display: block; max-width: 100%; font-size: 12px; color: var(--soft); white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.card .path { padding: 0 10px; }

.notice { display: flex; flex-direction: column; align-items: center; justify-content: center; gap: 6px;
  min-height: min(56vh, 460px); padding: 24px; text-align: center; color: var(--soft);
  border: 1px solid var(--edge); border-radius: 14px; background: var(--card); }
.notice svg { color: var(--accent); }
.notice h2 { margin: 6px 0 0; font-size: 18px; font-weight: 650; color: var(--body-text-color); }
.notice p { margin: 0; max-width: 56ch; font-size: 14px; overflow-wrap: anywhere; }
.notice.error svg { color: #dc2626; }

/* While a search runs; the delays keep quick ones from flickering. */
.block:has(> .pending) > [data-testid="status-tracker"] { display: none; }
.html-container > div { transition: opacity .1s; }
.gradio-container .html-container.pending { opacity: 1; }
.pending > div { opacity: .4; pointer-events: none; transition-delay: .2s; }
#results .pending::before { content: "Searching…"; position: sticky; top: 40vh; z-index: 2; display: block;
  width: max-content; height: 36px; margin: 0 auto -36px; padding: 0 16px; border-radius: 99px; font-size: 14px;
  font-weight: 600; line-height: 36px; color: #fff; background: #4f46e5; box-shadow: 0 4px 16px rgb(0 0 0 / .2);
  opacity: 0; animation: appear .1s .2s forwards; }

@keyframes appear { to { opacity: 1; } }
@keyframes pulse { from { opacity: 1; } to { opacity: .45; } }
@media (prefers-reduced-motion: reduce) {
  .gradio-container * { animation-duration: 0s !important; transition: none !important; }
}
@media (max-width: 760px) {
  .gradio-container .main.fillable { padding: 0 12px 16px; }
  #layout { flex-direction: column; align-items: stretch; gap: 14px; }
  #side { display: contents; }
  #main { order: 1; }
  #side .form { order: 2; }
  .drop { flex-direction: row; flex-wrap: wrap; justify-content: center; gap: 4px 10px; padding: 12px; }
  .drop svg { margin: 0; }
  .samples .strip { display: flex; overflow-x: auto; padding: 3px; margin: -3px; }
  .strip button { flex: 0 0 68px; }
  .grid { grid-template-columns: repeat(2, 1fr); gap: 10px; }
  .notice { min-height: 36vh; }
}
"""
