"""How the page of duplicates looks: what it has beyond the audit's page."""

from __future__ import annotations

from retrieval_app.audit_look import CSS as AUDIT_CSS

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">'
    '<rect width="24" height="24" rx="6" fill="#4f46e5"/>'
    '<g fill="none" stroke="#fff" stroke-width="2" stroke-linejoin="round">'
    '<rect x="5" y="5" width="10" height="10" rx="2"/><path d="M18 9.5V17a2 2 0 0 1-2 2H8.5"/></g></svg>'
)

HEADING_ICON = (
    '<svg viewBox="0 0 24 24" width="22" height="22" fill="none" stroke="currentColor" stroke-width="1.6"'
    ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">'
    '<rect x="3.5" y="3.5" width="12.5" height="12.5" rx="2.5"/>'
    '<path d="M20.5 8v10a2.5 2.5 0 0 1-2.5 2.5H8"/></svg>'
)

CSS = (
    AUDIT_CSS
    + """
.about-page { max-width: 92ch; padding: 12px 0 2px; font-size: 13.5px; color: var(--soft); }
.about-page b { font-weight: 600; color: var(--text); }
.about-page p + p { margin-top: 5px; }
.filter { display: flex; align-items: center; gap: 8px; font-size: 13.5px; font-weight: 550; cursor: pointer; }
.filter input { width: 17px; height: 17px; margin: 0; accent-color: var(--accent); }
.filter span { color: var(--soft); font-weight: 400; font-variant-numeric: tabular-nums; }
body:has(#only:checked) .group:not(.differ) { display: none; }

.groups { display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; padding-top: 14px; }
.group { padding: 12px; border: 1px solid var(--edge); border-radius: 14px; background: var(--card);
  content-visibility: auto; contain-intrinsic-size: auto 190px; scroll-margin-top: 70px; }
.group:target { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.group.differ { border-left: 4px solid var(--amber); }
.group h2 { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; margin-bottom: 10px;
  font-size: 14px; font-weight: 650; }
.group h2 a { border-radius: 4px; color: inherit; text-decoration: none; }
.group h2 a:hover { color: var(--accent); text-decoration: underline; }
.group h2 > span:not(.chip) { font-size: 12.5px; font-weight: 400; color: var(--soft); }
.group h2 .chip { font-size: 12.5px; white-space: normal; overflow-wrap: anywhere; }
.differing { --tone: var(--amber); }
.label { --tone: var(--text); }
.same { --tone: var(--soft); }
.keeping { --tone: var(--accent); }

.contents { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 372px), 1fr)); gap: 12px 20px; }
.contents > li { display: grid; grid-template-columns: 124px minmax(0, 1fr); gap: 12px; align-items: start; }
.contents .picture { height: 124px; cursor: default; }
.contents .keeper .picture { outline: 2px solid var(--accent); outline-offset: 1px; }
.measures { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 10px; margin-bottom: 6px; font-size: 12.5px;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.measures b { font-size: 13.5px; font-weight: 650; color: var(--text); }
.files { display: grid; gap: 7px; min-width: 0; }
.files li { min-width: 0; }
.files .chip { display: inline-block; vertical-align: bottom; }
.files .size { margin-left: 7px; font-size: 12px; color: var(--soft); white-space: nowrap; }
.files .path { margin: 2px 0 0; white-space: normal; word-break: break-all; }
.files .more, .contents > .more { display: block; margin: 0; font-size: 12.5px; color: var(--soft); }

@media (max-width: 640px) {
  .group { padding: 10px; }
  .contents > li { grid-template-columns: 92px minmax(0, 1fr); gap: 10px; }
  .contents .picture { height: 92px; }
}
@media print { .tools { display: none; } .group { break-inside: avoid; content-visibility: visible; } }
"""
)
