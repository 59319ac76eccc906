"""The page of a published gallery: the server's page, with another source of its data."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from index.errors import InputError
from retrieval_app.page.shell import STYLES, VIEWS
from retrieval_app.publish.catalogue import Choice
from retrieval_app.publish.site_folder import GENERATOR
from retrieval_app.reports.standalone import load_template

_VIEWS = ("search", "map")
_FIRST_SCREEN = ("core", "search", "details", "published")  # scripts that are loaded at once, not one by the other
_OF_WORKER = ("published/photo_worker.js", "published/resize.js")
_NOT_COPIED = ("reports", "review", "galleries", "problems", "quality")
_POLICY = (  # nothing may come from or go to another host; the model runs as WebAssembly
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src 'self' data: blob:; object-src 'none';"
    " base-uri 'none'; form-action 'none'"
)
_TRANSPORT = b"// The data of a published gallery.\nexport * from '../published/transport.js';\n"


@dataclass(frozen=True, slots=True)
class Texts:
    """Title, Markdown text about the gallery, and licence; empty without one."""

    title: str
    about: str = ""
    licence: str = ""


def list_scripts() -> dict[str, bytes]:
    """The page's scripts and styles by their paths, those of the published views."""
    found: dict[str, bytes] = {}

    def read(folder: Traversable, path: str) -> None:
        for one in sorted(folder.iterdir(), key=lambda one: one.name):
            if one.is_dir() and one.name not in _NOT_COPIED:
                read(one, f"{path}{one.name}/")
            elif one.is_file():
                found[f"{path}{one.name}"] = one.read_bytes()

    read(files("retrieval_app.page").joinpath("static"), "")
    return found | {"core/transport.js": _TRANSPORT}


def draw_site(folder: str, scripts: Iterable[str], data: Mapping[str, Any], texts: Texts, *, choice: Choice) -> str:
    """The page as HTML; its scripts are in `folder`."""
    first = [name for name in scripts if name.endswith(".js") and name.partition("/")[0] in _FIRST_SCREEN]
    shown = [*choice.own, *(["columns"] if choice.own or choice.metadata else [])]
    encoded = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":  # nothing in it can end the element that holds it
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    views = [view for view in VIEWS if view["name"] in _VIEWS and (view["name"] != "map" or data["map"])]
    markdown = MarkdownIt("commonmark", {"html": False}).disable("image")  # which would come from elsewhere
    values: dict[str, Any] = {"name": texts.title, "who": None, "is_one_of_several": False, "views": views}
    return load_template("page.html").render(
        **values,
        page=folder,
        styles=[style for style in STYLES if style.partition("/")[0] not in _NOT_COPIED] + ["published/published.css"],
        site={
            "generator": GENERATOR,
            "policy": _POLICY,
            "scripts": [name for name in first if name not in _OF_WORKER],
            "catalogue": data["catalogue"],
            "data": Markup(encoded),
            "about": Markup(markdown.render(texts.about)),
            "licence": texts.licence,
            "classes": " ".join(["published", *(f"has-{name}" for name in shown)]),
        },
    )


def read_about(path: Path) -> str:
    """The text of a Markdown file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"--about cannot be read: {reason}", at=path) from error
