"""Standalone HTML files: script, style and data are inline, and a content security policy allows nothing else.

Names and labels are hostile: in markup they are escaped, in data `<`, `>` and `&` of the JSON are escaped, and the
scripts insert them as text, never as markup.
"""

import base64
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from index.durable import replacing
from index.errors import ImageError, InputError
from index.images.image_files import REASONS, decode_image
from index.items import Place
from index.progress import Progress
from index.sources.reading import CHANGED, read_indexed
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores

READ_AHEAD = 64
_QUALITY = 70
_REASONS = {**REASONS, CHANGED: "the file has changed since it was read first"}


def write_document(out: Path, template: str, **values: Any) -> None:
    """Write a template's HTML, replacing the file in one step."""
    try:
        with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(draw_document(template, **values))
    except OSError as error:
        raise InputError(f"the page cannot be written: {error.strerror}; choose another file", at=out) from error


def draw_document(template: str, *, script: str = "", data: Any = None, **values: Any) -> Iterator[str]:
    """A template's HTML with its policy, in parts; `script` is a file that runs as a module and reads `data`."""
    style, code = _read_static("reports/report.css"), _read_static(f"reports/{script}") if script else ""
    policy = (
        f"default-src 'none';{f' script-src {name_source(code)};' if code else ''} style-src {name_source(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    encoded = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # nothing in it can end the element that holds it
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return load_template(template).generate(
        policy=policy,
        icon=f"data:image/svg+xml,{quote(_read_static('icon.svg'))}",
        style=Markup(style),
        script=Markup(code),
        data=Markup(encoded),
        **values,
    )


@cache
def load_template(name: str) -> Template:
    """A template by its name; its values are escaped."""
    environment = Environment(
        loader=PackageLoader("retrieval_app.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = lambda text: printable_path(valid_text(text))
    environment.filters["count"] = lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}"
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    return environment.get_template(name)


def _read_static(name: str) -> str:
    return files("retrieval_app.page").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


@cache
def name_source(inline: str) -> str:
    """The source expression of an inline script or style sheet for the policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode('ascii')}'"


def draw_thumbnails(
    places: Sequence[Place], *, sides: Sequence[int], progress: Progress
) -> tuple[list[str], dict[int, str]]:
    """Base64 WebP files of images at their longest sides; empty ones have their problem by number."""
    pictures: list[str] = []
    gone: dict[int, str] = {}
    wanted = zip(places, sides, strict=True)
    drawn = map_ahead(lambda one: draw_thumbnail(one[0], side=one[1]), wanted, workers=usable_cores(), ahead=READ_AHEAD)
    for number, (picture, problem) in enumerate(drawn):
        pictures.append(picture)
        if problem:
            gone[number] = problem
        progress(number + 1, len(places))
    return pictures, gone


def draw_thumbnail(place: Place, *, side: int) -> tuple[str, str]:
    """The base64 WebP file of an image, at most `side` pixels long; or an empty one and its problem."""
    try:
        image = decode_image(read_indexed(place), name=place.name, target_side=side)
    except ImageError as error:
        return "", _REASONS[error.reason]
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format="WEBP", quality=_QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii"), ""
