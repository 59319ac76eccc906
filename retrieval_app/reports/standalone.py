"""HTML files that need no network: scripts, styles and data stand in them, and their policy lets nothing else in.

Names and labels are hostile: in markup they are escaped, as data they travel as JSON whose `<`, `>` and `&` are
escaped, and the scripts make text of them, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from index.durable import replacing
from index.errors import ImageError, InputError
from index.images.image_files import REASONS, decode_image
from index.sources.items import Place
from index.sources.reading import CHANGED, read_indexed
from index.text import printable_path, valid_text

_IMPORT = re.compile(r"^import \{([^}]*)\} from '([^']+)';\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_DARK = re.compile(r"^\.dark (\{.*?\})", re.DOTALL | re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{([^}]*)\};\n", re.MULTILINE)
QUALITY = 70
_REASONS = {**REASONS, CHANGED: "the file has changed since it was indexed"}


def bundle_scripts(entry: str, *, instead: Mapping[str, str]) -> str:
    """The page's modules that one of them needs as one script, each in a scope of its own.

    Args:
        entry: path below `static`.
        instead: modules by those that they take the place of.
    """
    bundled: dict[str, str] = {}

    def add(name: str) -> str:
        if name not in bundled:
            bundled[name] = ""
            names: list[str] = []
            text = _IMPORT.sub(lambda found: take(found, name), read_static(name))
            for found in _EXPORT_LIST.findall(text):
                names += _names(found)
            names += _EXPORT.findall(text)
            text = _EXPORT.sub("", _EXPORT_LIST.sub("", text))
            del bundled[name]  # after those that it needs
            bundled[name] = f"const {_scope(name)} = (() => {{\n{text}return {{{', '.join(names)}}};\n}})();\n"
        return _scope(name)

    def take(found: re.Match[str], importer: str) -> str:
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(importer), found[2]))
        names = ", ".join(name.replace(" as ", ": ") for name in _names(found[1]))
        return f"const {{{names}}} = {add(instead.get(wanted, wanted))};\n"

    add(entry)
    return "".join(bundled.values())


@cache
def read_static(name: str) -> str:
    """A file of the page, by its path below `static`."""
    return files("retrieval_app.page").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _scope(name: str) -> str:
    return "in_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def draw_document(
    template: str, *, styles: tuple[str, ...], script: str = "", data: Any = None, **values: Any
) -> Iterator[str]:
    """A template's HTML with its policy, in parts that are drawn when they are asked for.

    Args:
        template: its name.
        styles: paths below `static`.
        script: runs as a module.
        data: what the script reads.
        values: of the template.
    """
    style = join_styles(styles)
    script_source = f" script-src {name_source(script)};" if script else ""
    policy = (
        f"default-src 'none';{script_source} style-src {name_source(style)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return load_template(template).generate(
        policy=policy, icon=f"data:image/svg+xml,{quote(read_static('icon.svg'))}", style=Markup(style),
        script=Markup(script), data=_encode(data), **values,
    )  # fmt: skip


@cache
def join_styles(styles: tuple[str, ...]) -> str:
    """Style sheets as one, dark where the system is."""
    return _DARK.sub(r"@media (prefers-color-scheme: dark) { :root \1 }", "\n".join(map(read_static, styles)))


@cache
def load_template(name: str) -> Template:
    """A template by its name; what it is given is escaped."""
    environment = Environment(
        loader=PackageLoader("retrieval_app.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = lambda text: printable_path(valid_text(text))
    environment.filters["count"] = lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}"
    environment.filters["size"] = _size
    return environment.get_template(name)


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} B"
    return f"{size_bytes / 1e3:,.0f} kB" if size_bytes < 1e6 else f"{size_bytes / 1e6:,.1f} MB"


def _encode(data: Any) -> Markup:
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # nothing in it can end the element that holds it
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def name_source(inline: str) -> str:
    """How the policy names a script or a style sheet that stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode('ascii')}'"


def write_document(parts: Iterable[str], out: Path) -> None:
    """Replace a file in one step.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        shown = printable_path(str(out))
        raise InputError(f"{shown}: the page cannot be written: {error.strerror}; choose another file") from error


def draw_picture(place: Place, *, side: int) -> tuple[str, str]:
    """A WebP file in base64 of the bytes that a place expects, or why there is none."""
    try:
        picture = decode_image(read_indexed(place), name=place.name, target_side=side)
    except ImageError as error:
        return "", _REASONS[error.reason]
    return encode_picture(picture, side=side), ""


def encode_picture(image: Image.Image, *, side: int) -> str:
    """A WebP file in base64, its longest side no longer than `side` pixels."""
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii")
