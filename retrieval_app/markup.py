"""The fragments of HTML that the page shows, with every name and label escaped.

Fragments are handed to `gr.HTML` as its value under the template `${value}`. They must never travel as
Handlebars values (`{{path}}`): Gradio compiles what Handlebars gives as a JavaScript template, so a file
named `${alert(1)}.jpg` would run.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from index.hits import GalleryImage, Hit
from index.images import printable_path
from retrieval_app.service import MAX_UPLOAD_BYTES, Query, SearchResult

_ICON = (
    '<svg viewBox="0 0 24 24" width="{size}" height="{size}" fill="none" stroke="currentColor" stroke-width="1.6"'
    ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">{shape}</svg>'
)
_PHOTO = (
    '<rect x="3" y="4" width="18" height="16" rx="2.5"/><circle cx="9" cy="10" r="1.8"/>'
    '<path d="m4 18 5-5 4 4 3-3 4 4"/>'
)
_LENS = '<circle cx="11" cy="11" r="6.5"/><path d="m16 16 4.5 4.5"/>'
_WARNING = '<path d="M12 4 2.8 20h18.4L12 4Z"/><path d="M12 10v4.5M12 17.3v.2"/>'


def draw_header(name: str, *, count: int, model: str, width: int) -> str:
    """The gallery's name and what it was made with."""
    facts = (_count(count, "image"), model, f"{width}-d embedding")
    items = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    return f'<header class="top"><h1>{_icon(_LENS, 22)}{_text(name)}</h1><ul class="facts">{items}</ul></header>'


def draw_upload() -> str:
    """The box that takes a photo: by click, by drop or from the clipboard."""
    return (
        f'<label class="drop">{_icon(_PHOTO, 30)}'
        f'<input type="file" accept="image/*" data-limit="{MAX_UPLOAD_BYTES}">'
        '<strong class="idle">Drop a photo here</strong>'
        '<strong class="busy" role="status">Reading the photo…</strong>'
        "<span>or click to choose, or paste one</span></label>"
    )


def draw_samples(images: Sequence[GalleryImage]) -> str:
    """A strip of gallery images to start from."""
    buttons = "".join(
        f'<button type="button" data-id="{image.id}" title="{_text(image.path)}"'
        f' aria-label="Search with {_text(image.path)}">{_thumbnail(f"thumb/{image.id}")}</button>'
        for image in images
    )
    return (
        '<section class="samples"><h2>Or start from one of these</h2>'
        '<button type="button" class="quiet" data-shuffle>Show others</button>'
        f'<div class="strip">{buttons}</div></section>'
    )


def draw_query(query: Query | None, *, can_go_back: bool = False) -> str:
    """The card that says what is searched for; nothing before the first search."""
    if query is None:
        return ""
    source = f"thumb/{query.image_id}" if query.image_id is not None else f"query/{query.ref.partition(':')[2]}"
    origin = "From the gallery" if query.image_id is not None else "Your photo"
    back = '<button type="button" class="quiet back" data-back>← Back</button>' if can_go_back else ""
    return (
        f'<section class="query" aria-label="Query"><div class="picture">{_thumbnail(source)}</div>'
        f'<div class="about"><span class="kicker">{origin}</span>{_chip(query.label)}'
        f'<span class="path" title="{_text(query.title)}">{_text(query.title)}</span>{back}</div></section>'
    )


def draw_results(result: SearchResult) -> str:
    """The grid of hits, or the word that there are none."""
    if not result.hits:
        return _notice("Nothing found", "The gallery holds no other image.", shape=_LENS)
    found = f"{_count(len(result.hits), 'result')} <span>in {result.milliseconds:.1f} ms</span>"
    cards = "".join(_card(hit, query=result.query) for hit in result.hits)
    return f'<p class="found" role="status">{found}</p><ol class="grid">{cards}</ol>'


def draw_welcome() -> str:
    """What the results' place says before the first search."""
    return _notice("Find images like yours", "Drop a photo, or start from an image of the gallery.", shape=_LENS)


def draw_error(message: str) -> str:
    """A failure, in words."""
    return _notice("That did not work", message, shape=_WARNING, kind="error")


def _card(hit: Hit, *, query: Query) -> str:
    label = _chip(hit.label, same=hit.label is not None and hit.label == query.label)
    return (
        f'<li><button type="button" class="card" data-id="{hit.id}"'
        f' aria-label="Result {hit.rank}: {_text(hit.path)}, score {hit.score:.3f}. Search with this image">'
        f'<span class="picture">{_thumbnail(f"thumb/{hit.id}")}<span class="gone">No picture available</span>'
        f'<span class="rank">{hit.rank}</span></span>'
        f'<span class="line"><span class="score">{hit.score:.3f}</span>{label}</span>'
        f'<span class="path" title="{_text(hit.path)}">{_text(hit.path)}</span></button></li>'
    )


def _notice(title: str, text: str, *, shape: str, kind: str = "hint") -> str:
    role = "alert" if kind == "error" else "status"
    words = f"<h2>{escape(title)}</h2><p>{_text(text)}</p>"
    return f'<div class="notice {kind}" role="{role}">{_icon(shape, 40)}{words}</div>'


def _chip(label: str | None, *, same: bool = False) -> str:
    if label is None:
        return ""
    return f'<span class="chip{" same" if same else ""}" title="{_text(label)}">{_text(label)}</span>'


def _thumbnail(source: str) -> str:
    return f'<img src="{escape(source)}" alt="" loading="lazy" decoding="async" draggable="false">'


def _icon(shape: str, size: int) -> str:
    return _ICON.format(size=size, shape=shape)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _text(text: str) -> str:
    return escape(printable_path(text))
