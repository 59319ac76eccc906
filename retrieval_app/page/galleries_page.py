"""The page of a server that has several galleries: those that its visitor may look into, each with a few pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retrieval_app.reports.standalone import load_template

STYLES = ("core/base.css", "core/frame.css", "galleries/galleries.css")


def draw_galleries(galleries: Iterable[Mapping[str, Any]], *, who: str | None = None) -> str:
    """The page as HTML, of entries as the API lists them, with names escaped; `who` is signed in and can leave."""
    entries = [{**gallery, "may": _say_rights(gallery["can"])} for gallery in galleries]
    return load_template("galleries.html").render(galleries=entries, who=who, styles=STYLES)


def _say_rights(can: Mapping[str, bool]) -> str:
    """What of a gallery its visitor may."""
    return ", ".join(["search", *(["review"] if can["review"] else []), *(["change"] if can["write"] else [])])
