"""The page's frame: a Gradio page that holds a header and an empty place for every view.

What fills the places are the modules in `static`, which talk to the API; no event of Gradio's is used.
"""

from __future__ import annotations

import json
from importlib.resources import files

import gradio as gr

from index.text import printable_path
from retrieval_app.reports.standalone import load_template

VIEWS = json.loads(files("retrieval_app.page").joinpath("views.json").read_text(encoding="utf-8"))
"""The views in their order: `name` in addresses, `title`, `icon`, `module` and `styles` below `static`.

The first is shown where an address names none. A module has `start(panel)`, as `static/nav.js` says.
"""
STYLES = ("core/base.css", "core/frame.css", *dict.fromkeys(style for view in VIEWS for style in view["styles"]))
HEAD = "".join(
    (
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="page/icon.svg" type="image/svg+xml">',
        *(f'<link rel="stylesheet" href="page/{name}">' for name in STYLES),
    )
)
"""For `gr.mount_gradio_app(head=...)`; the addresses are those of `static`, which the application serves at /page/."""

_START = "import(new URL('page/nav.js', document.baseURI)).then(nav => nav.start(element));"


def build_page(name: str) -> gr.Blocks:
    """The page over the gallery of that name."""
    page = gr.Blocks(title=f"{printable_path(name)} · image search", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(draw_frame(name), js_on_load=_START, apply_default_css=False)
    return page


def draw_frame(name: str) -> str:
    """The frame as HTML, with the name escaped; it is right before any script runs."""
    return load_template("frame.html").render(name=name, views=VIEWS)


def make_theme() -> gr.themes.Base:
    """A quiet theme on the fonts that every system has."""
    fonts = [gr.themes.Font(name) for name in ("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "Consolas", "monospace")]
    return gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=fonts, font_mono=mono)
