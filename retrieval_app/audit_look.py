"""How the page of an audit looks: its style sheet, its icon, and the parts that every audit shares."""

from __future__ import annotations

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">'
    '<rect width="24" height="24" rx="6" fill="#4f46e5"/>'
    '<g fill="none" stroke="#fff" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round">'
    '<path d="M5.5 6.5h5.6l7.4 7.4-4.9 4.9-8.1-8.1Z"/><path d="M9 10v.1"/></g></svg>'
)

_KEYS = (
    ("<kbd>J</kbd> <kbd>K</kbd> or <kbd>↓</kbd> <kbd>↑</kbd>", "next image, previous image"),
    ("<kbd>A</kbd> or <kbd>Enter</kbd>", "accept the verdict"),
    ("<kbd>L</kbd>", "leave the label as it is"),
    ("<kbd>1</kbd> <kbd>2</kbd> <kbd>3</kbd>", "relabel to that suggestion"),
    ("<kbd>R</kbd>", "relabel to any class, or to a new one"),
    ("<kbd>X</kbd>", "belongs to no class"),
    ("<kbd>U</kbd>", "undo the last decision"),
    ("<kbd>Z</kbd>", "enlarge the picture; all other keys go on working"),
    ("<kbd>/</kbd>", "search"),
    ("<kbd>Esc</kbd>", "close what is open, leave the search"),
)

BODY = f"""<noscript><p class="warning">This page needs JavaScript, which is switched off here.</p></noscript>
<header class="top">
  <h1><svg viewBox="0 0 24 24" width="22" height="22" fill="none" stroke="currentColor" stroke-width="1.6"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M3.5 4.5h7.7l9.3 9.3-6.7 6.7L3.5 10.2Z"/>
    <circle cx="7.8" cy="8.6" r="1.2"/></svg><span id="run"></span></h1>
  <ul class="facts" id="facts"></ul>
</header>
<p class="warning" id="warning" role="alert" hidden></p>
<section class="tools" id="tools" aria-label="Filter, sort and save">
  <div class="line">
    <div class="segments" id="verdicts" role="group" aria-label="Verdict"></div>
    <input type="search" id="text" placeholder="Search path or label" aria-label="Search path or label">
    <select id="state" aria-label="Decided or not"><option value="all">Decided or not</option>
      <option value="undecided">Undecided</option><option value="decided">Decided</option></select>
    <select id="label" aria-label="Given label"><option value="">Any given label</option></select>
    <span class="sorting"><select id="sort" aria-label="Sort by">
      <option value="wrong">Sort: chance wrong</option><option value="confidence">Sort: own-label confidence</option>
      <option value="label">Sort: given label</option><option value="suggested">Sort: suggested label</option>
      <option value="path">Sort: path</option><option value="verdict">Sort: verdict</option></select>
    <button type="button" class="plain" id="direction"></button></span>
  </div>
  <div class="line">
    <span id="count" class="count" role="status"></span><span class="tokens" id="tokens"></span>
    <button type="button" class="quiet" id="accept-all">Accept all shown…</button>
    <span class="done"><progress id="bar" max="1" value="0" aria-label="Decided"></progress>
      <span id="done"></span></span>
    <button type="button" class="plain" id="undo" title="Undo (u)">Undo</button>
    <button type="button" class="plain" id="load">Load…</button>
    <input type="file" id="file" accept=".csv,text/csv" hidden>
    <button type="button" class="primary" id="download">Download decisions</button>
    <button type="button" class="plain round" id="help-open" aria-label="Keys" title="Keys (?)">?</button>
  </div>
</section>
<div class="layout">
  <aside class="side" aria-label="Noise">
    <details open><summary>Classes <span>estimated share of wrong labels</span></summary>
      <ul class="noise" id="classes"></ul></details>
    <details open><summary>Confusions <span>given → shown, estimated images</span></summary>
      <ul class="noise" id="pairs"></ul></details>
  </aside>
  <main>
    <div id="rows" role="feed" aria-label="Images"></div>
    <div class="notice" id="none" hidden><h2>Nothing here</h2><p>No image passes all filters.</p>
      <button type="button" class="plain" id="clear">Clear the filters</button></div>
    <button type="button" class="plain more" id="more" hidden></button>
  </main>
</div>
<p class="said" id="said" role="status"></p>
<dialog id="zoom" aria-label="Enlarged picture"><form method="dialog">
  <div class="stage" id="stage"></div><div class="caption" id="caption"></div>
  <div class="buttons"><button type="button" class="plain" id="zoom-row">Go to this image</button>
    <button class="plain">Close</button></div></form></dialog>
<dialog id="relabel" aria-labelledby="relabel-title"><form method="dialog">
  <h2 id="relabel-title">What does it show?</h2><p id="relabel-about"></p>
  <input id="new-label" list="labels" autocomplete="off" aria-label="New label" placeholder="A class, or a new one">
  <datalist id="labels"></datalist>
  <div class="buttons"><button type="button" class="plain" data-close>Cancel</button>
    <button class="primary" id="relabel-yes">Relabel</button></div></form></dialog>
<dialog id="confirm" aria-labelledby="confirm-title"><form method="dialog">
  <h2 id="confirm-title"></h2><p id="confirm-about"></p>
  <div class="buttons"><button type="button" class="plain" data-close>Cancel</button>
    <button class="primary" id="confirm-yes">Accept them</button></div></form></dialog>
<dialog id="help" aria-labelledby="help-title"><form method="dialog"><h2 id="help-title">Keys</h2>
  <dl>{"".join(f"<dt>{keys}</dt><dd>{what}</dd>" for keys, what in _KEYS)}</dl>
  <div class="buttons"><button class="plain">Close</button></div></form></dialog>"""

CSS = """
:root { color-scheme: light dark; --page: #f8fafc; --card: #fff; --sunk: #f1f5f9; --edge: #e2e8f0; --text: #1e293b;
  --soft: #64748b; --accent: #4f46e5; --hover: #818cf8; --on-accent: #fff; --red: #c02626; --amber: #a15c07;
  --green: #1c7a41; --violet: #7e22ce; --gap: 14px; --bar: 110px; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f172a; --card: #1e293b; --sunk: #273449; --edge: #334155; --text: #e2e8f0; --soft: #94a3b8;
    --accent: #818cf8; --hover: #a5b4fc; --on-accent: #0f172a; --red: #f87171; --amber: #fbbf24; --green: #4ade80;
    --violet: #c084fc; }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0 auto; max-width: 1680px; padding: 0 24px 64px; background: var(--page); color: var(--text);
  font: 14px/1.4 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
button, input, select { font: inherit; color: inherit; }
button { cursor: pointer; }
button:disabled { opacity: .45; cursor: default; }
ul, ol, dl, dd, p, h1, h2 { margin: 0; padding: 0; list-style: none; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

.top { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 18px; padding: 18px 0 14px; }
.top h1 { display: flex; align-items: center; gap: 9px; font-size: 20px; font-weight: 650; letter-spacing: -.01em;
  min-width: 0; overflow-wrap: anywhere; }
.top svg { color: var(--accent); flex: none; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); }
.facts b { color: var(--text); font-weight: 600; }
.warning { margin-bottom: 12px; padding: 9px 14px; border: 1px solid var(--amber); border-radius: 10px;
  font-size: 13.5px; background: var(--card); color: var(--amber); }

.tools { position: sticky; top: 0; z-index: 5; display: grid; grid-template-columns: minmax(0, 1fr);
  gap: 8px; margin: 0 -24px; padding: 10px 24px;
  background: var(--page); border-block: 1px solid var(--edge); }
.tools .line { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; min-height: 34px; }
.tools input, .tools select, dialog input { height: 34px; padding: 0 10px; border: 1px solid var(--edge);
  border-radius: 9px; background: var(--card); font-size: 13.5px; }
.tools select { max-width: 200px; padding: 0 6px; }
#text { flex: 1 1 160px; min-width: 120px; }
.segments { display: flex; max-width: 100%; overflow-x: auto; padding: 3px; border-radius: 10px;
  background: var(--sunk); }
.segments button { flex: none; height: 28px; padding: 0 10px; border: 0; border-radius: 7px; background: none;
  font-size: 13px; white-space: nowrap; color: var(--soft); }
.segments button[aria-pressed=true] { color: var(--accent); font-weight: 600; background: var(--card);
  box-shadow: 0 1px 3px rgb(0 0 0 / .14), inset 0 0 0 1px color-mix(in srgb, var(--accent) 22%, transparent); }
.segments span { font-variant-numeric: tabular-nums; opacity: .7; font-weight: 400; }
.sorting { display: flex; gap: 4px; }
.plain, .primary { height: 34px; padding: 0 12px; border: 1px solid var(--edge); border-radius: 9px;
  background: var(--card); font-size: 13.5px; font-weight: 550; white-space: nowrap; }
.plain:hover:enabled { border-color: var(--hover); }
.primary { color: var(--on-accent); background: var(--accent); border-color: var(--accent); }
.primary:hover:enabled { background: color-mix(in srgb, var(--accent) 88%, var(--text)); }
.round { width: 34px; padding: 0; }
#direction { width: 34px; padding: 0; }
.quiet { padding: 2px 0; border: 0; background: none; font-size: 13px; font-weight: 550; color: var(--accent); }
.quiet:hover { text-decoration: underline; }
.count { font-weight: 600; }
.count span { color: var(--soft); font-weight: 400; }
.tokens { display: flex; flex-wrap: wrap; gap: 6px; min-width: 0; }
.token { max-width: 320px; height: 26px; padding: 0 10px; border: 0; border-radius: 99px; font-size: 12.5px;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; color: var(--accent);
  background: color-mix(in srgb, var(--accent) 12%, transparent); }
.done { display: flex; align-items: center; gap: 9px; margin-left: auto; font-size: 13px; color: var(--soft);
  font-variant-numeric: tabular-nums; }
progress { width: 130px; height: 6px; border: 0; border-radius: 99px; overflow: hidden; background: var(--edge);
  appearance: none; }
progress::-webkit-progress-bar { background: var(--edge); }
progress::-webkit-progress-value { background: var(--accent); border-radius: 99px; }
progress::-moz-progress-bar { background: var(--accent); }

.layout { display: flex; align-items: flex-start; gap: 24px; padding-top: 16px; }
.side { flex: 0 0 272px; position: sticky; top: calc(var(--bar) + 16px); display: grid; gap: var(--gap);
  max-height: calc(100vh - var(--bar) - 32px); grid-template-rows: repeat(2, auto); }
.side details { min-height: 0; overflow: hidden; border: 1px solid var(--edge);
  border-radius: 14px; background: var(--card); }
.side summary { padding: 10px 12px 8px; font-weight: 600; font-size: 13.5px; cursor: pointer; }
.side summary span { display: block; font-size: 12px; font-weight: 400; color: var(--soft); }
.noise { max-height: max(150px, calc((100vh - var(--bar) - 210px) / 2)); overflow-y: auto; padding: 0 6px 6px; }
.noise button { position: relative; display: flex; gap: 8px; width: 100%; padding: 4px 8px; border: 0;
  border-radius: 7px; background: none; text-align: left; font-size: 13px; overflow: hidden; }
.noise button:hover { background: var(--sunk); }
.noise button[aria-pressed=true] { background: color-mix(in srgb, var(--accent) 14%, transparent); font-weight: 600; }
.noise .name { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.noise .number { font-variant-numeric: tabular-nums; color: var(--soft); }
.noise .track + .number { min-width: 34px; text-align: right; }
.noise .track { flex: 0 0 64px; align-self: center; height: 6px; border-radius: 99px; background: var(--sunk); }
.noise button:hover .track { background: var(--edge); }
.track i { display: block; height: 100%; border-radius: 99px;
  background: color-mix(in srgb, var(--red) 70%, transparent); }
.noise .nothing { padding: 4px 8px; font-size: 13px; color: var(--soft); }

main { flex: 1; min-width: 0; }
.row { position: relative; display: grid; grid-template-columns: 124px minmax(0, 1fr) 418px clamp(148px, 12.5vw, 200px);
  gap: 16px; margin-bottom: 10px; padding: 11px; border: 1px solid var(--edge);
  border-radius: 14px; background: var(--card);
  content-visibility: auto; contain-intrinsic-size: auto 142px; scroll-margin: calc(var(--bar) + 10px) 0 170px; }
.row.current { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent), 0 4px 16px rgb(0 0 0 / .1); }
.row:focus { outline: none; }
.row:focus-visible { box-shadow: 0 0 0 2px var(--accent), 0 4px 16px rgb(0 0 0 / .14); }
.row.decided > :not(.decide) { opacity: .62; }
.row.current > * { opacity: 1 !important; }
.picture { position: relative; display: block; width: 100%; padding: 0; border: 0; border-radius: 9px; overflow: hidden;
  background: var(--sunk); cursor: zoom-in; }
.picture img { display: block; width: 100%; height: 100%; object-fit: contain; }
.gone { display: grid; place-items: center; height: 100%; padding: 6px; font-size: 11.5px; line-height: 1.25;
  text-align: center; color: var(--soft); overflow: hidden; }
.row > .picture { height: 124px; }

.about { display: flex; flex-direction: column; gap: 5px; min-width: 0; }
.head { display: flex; align-items: baseline; flex-wrap: wrap; gap: 2px 10px; font-size: 12.5px; color: var(--soft); }
.head b { font-size: 14px; font-weight: 650; color: var(--text); font-variant-numeric: tabular-nums; }
.head .chip { margin-left: auto; }
.head .likely b { color: var(--red); }
.labels { display: flex; align-items: baseline; gap: 7px; min-width: 0; font-size: 16px; font-weight: 650;
  letter-spacing: -.005em; }
.labels > * { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.labels i { flex: none; font-style: normal; font-weight: 400; color: var(--soft); }
.labels .given:not(:last-child) { flex: none; max-width: 55%; }
.labels .new { flex: 1 1 0; color: var(--accent); }
.chip { justify-self: start; max-width: 100%; padding: 0 8px; border: 1px solid; border-radius: 99px;
  font-size: 12px; line-height: 19px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  color: var(--tone); border-color: color-mix(in srgb, var(--tone) 38%, transparent);
  background: color-mix(in srgb, var(--tone) 9%, transparent); }
.keep { --tone: var(--green); } .relabel { --tone: var(--amber); } .no-class { --tone: var(--red); }
.duplicate { --tone: var(--violet); }
button.chip:hover { text-decoration: underline; }
.bars { display: grid; gap: 1px; max-width: 380px; }
.bars button { display: grid; grid-template-columns: 12px minmax(0, 1fr) 72px 36px; align-items: center; gap: 7px;
  width: 100%; padding: 0 4px; margin-left: -4px; border: 0; border-radius: 5px; background: none; text-align: left;
  font-size: 12.5px; line-height: 18px; }
.bars button:hover { background: var(--sunk); }
.bars .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars .own { font-weight: 600; }
.bars .track { height: 6px; border-radius: 99px; background: var(--sunk); }
.bars button:hover .track { background: var(--edge); }
.bars .track i { background: color-mix(in srgb, var(--accent) 75%, transparent); }
.bars .number { text-align: right; color: var(--soft); font-variant-numeric: tabular-nums; }
.path { margin-top: auto; font-size: 12px; color: var(--soft); overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
kbd { font: 600 11px/1 ui-monospace, Menlo, Consolas, monospace; color: var(--soft); }

.near { display: flex; gap: 14px; min-width: 0; }
.near > div { flex: 1 1 0; min-width: 0; }
.near h3 { margin: 0 0 5px; font-size: 11.5px; font-weight: 600; color: var(--soft); white-space: nowrap; }
.near ul { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 7px; }
.near li { min-width: 0; font-size: 11.5px; line-height: 15px; }
.near .picture { height: auto; aspect-ratio: 1; border-radius: 8px; box-shadow: inset 0 0 0 1px var(--edge); }
.near .picture img { object-fit: cover; }
.near span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.near .cosine { color: var(--soft); font-variant-numeric: tabular-nums; }
.near .twin .picture { outline: 2px solid var(--violet); outline-offset: 1px; }
.near .twin .cosine { color: var(--violet); }
.near em { font-style: normal; font-size: 12px; color: var(--soft); }

.decide { display: flex; flex-direction: column; gap: 5px; }
.decide button { display: flex; align-items: center; gap: 6px; height: 27px; padding: 0 9px;
  border: 1px solid var(--edge); border-radius: 8px; background: var(--card); font-size: 12.5px; font-weight: 550;
  text-align: left; }
.decide button span { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.decide button:hover { border-color: var(--hover); }
.decide .proposed { color: var(--accent); border-color: color-mix(in srgb, var(--accent) 55%, transparent); }
.decide [aria-pressed=true] { color: var(--on-accent); background: var(--accent); border-color: var(--accent); }
.decide [aria-pressed=true] kbd { color: inherit; }

.notice { display: flex; flex-direction: column; align-items: center; justify-content: center; gap: 10px;
  min-height: min(50vh, 400px); padding: 24px; text-align: center; color: var(--soft); border: 1px solid var(--edge);
  border-radius: 14px; background: var(--card); }
.notice h2 { font-size: 18px; font-weight: 650; color: var(--text); }
.more { display: block; margin: 6px auto 0; }
.said { position: fixed; z-index: 6; left: 50%; bottom: 18px; max-width: calc(100vw - 32px); padding: 8px 16px;
  transform: translateX(-50%); border-radius: 99px; font-size: 13.5px; font-weight: 550; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; color: #fff; background: rgb(15 23 42 / .92);
  box-shadow: 0 4px 16px rgb(0 0 0 / .25); opacity: 0; pointer-events: none; transition: opacity .2s; }
.said.on { opacity: 1; }

dialog { width: min(440px, calc(100vw - 24px)); padding: 0; border: 1px solid var(--edge); border-radius: 14px;
  color: var(--text); background: var(--card); box-shadow: 0 18px 60px rgb(0 0 0 / .35); }
dialog::backdrop { background: rgb(15 23 42 / .55); }
dialog form { display: grid; gap: 12px; padding: 18px; }
dialog h2 { font-size: 17px; font-weight: 650; }
dialog p { color: var(--soft); overflow-wrap: anywhere; }
dialog .labels { color: var(--text); }
dialog input { width: 100%; height: 38px; font-size: 15px; }
.buttons { display: flex; justify-content: flex-end; gap: 8px; }
#zoom { width: min(760px, calc(100vw - 24px)); }
.stage { height: min(62vh, 560px); border-radius: 9px; overflow: hidden; background: var(--sunk); }
.stage img { display: block; width: 100%; height: 100%; object-fit: contain; }
.caption { display: grid; gap: 5px; min-width: 0; overflow-wrap: anywhere; }
.caption .path { white-space: normal; margin: 0; }
.caption .labels > * { white-space: normal; }
#help dl { display: grid; grid-template-columns: auto 1fr; gap: 8px 16px; font-size: 13.5px; }
#help kbd { display: inline-block; min-width: 20px; padding: 4px 6px; border: 1px solid var(--edge); border-radius: 5px;
  text-align: center; color: var(--text); background: var(--sunk); }

@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
@media (hover: none) { .decide kbd { display: none; } }
@media (max-width: 1240px) {
  .layout { flex-direction: column; align-items: stretch; gap: 14px; }
  .side { flex: none; position: static; max-height: none; grid-template: auto / 1fr 1fr; align-items: start; }
  .noise { max-height: 190px; }
}
@media (max-width: 1100px) {
  .tools { position: static; }
  .row { grid-template-columns: 124px minmax(0, 1fr) 148px; scroll-margin-top: 10px;
    contain-intrinsic-size: auto 270px; }
  .near { grid-column: 1 / -1; grid-row: 2; }
  .near ul { grid-template-columns: repeat(3, minmax(0, 92px)); }
}
@media (max-width: 640px) {
  body { padding: 0 12px 64px; }
  .tools { margin: 0 -12px; padding: 10px 12px; }
  .tools select { flex: 1 1 30%; min-width: 0; }
  .sorting { flex: 1 0 100%; }
  .tools .sorting select { max-width: none; }
  .wide { display: none; }
  .segments { flex: 1 0 100%; }
  #text { flex-basis: 100%; }
  .done { margin-left: 0; flex: 1 0 100%; order: -1; }
  .done progress { flex: 1; }
  #download { flex: 1; }
  .side { grid-template: auto / 1fr; gap: 8px; }
  .row { grid-template-columns: 96px minmax(0, 1fr); gap: 11px 12px; contain-intrinsic-size: auto 370px; }
  .row > .picture { height: 96px; }
  .near { gap: 12px; }
  .near ul { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 5px; }
  .decide { grid-column: 1 / -1; display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .decide button { height: 36px; font-size: 13.5px; }
}
"""
