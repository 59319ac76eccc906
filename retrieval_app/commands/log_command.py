"""`retrieval log`: who did what to a gallery that is served."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from index.commands.console import emit, output_options
from index.errors import GalleryError
from index.text import printable_path
from index.text_table import align
from index.versions.people import PEOPLE

_NAMED = ("at", "who", "from", "what", "request")
_MOST_CHARACTERS = 100


def _read_since(context: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no day or time such as 2026-11-01", context, param) from error
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


@click.command(name="log")
@click.argument("gallery", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--since", callback=_read_since, metavar="TIME", help="Only from this day or time on, such as 2026-11-01; UTC."
)
@click.option("--who", metavar="NAME", help="Only what this name did: that of a token, or 'this machine'.")
@output_options
def log(gallery: Path, since: datetime | None, who: str | None, as_json: bool) -> None:
    """Tell who did what to GALLERY through a server, when (UTC) and from which address: decisions and their undoing,
    images added and removed, updates, evaluations, how each of these jobs ended, exports, signing in and out, and
    from where wrong tokens came.

    Who is the name of a token (see `retrieval tokens`), 'the token' of a server that has one for all, 'this machine',
    'a visitor', or 'the server' itself. What else was refused is not in it.

    \b
    Examples:
      retrieval log gallery --since 2026-11-01
      retrieval log gallery --who anna --json
    """
    from index.versions.no_gallery import describe_no_gallery
    from retrieval_app.review.log_files import read_log

    if not (gallery / PEOPLE).is_dir() and not (gallery / "CURRENT").exists():
        raise GalleryError(printable_path(str(gallery)), describe_no_gallery(gallery))
    lines = read_log(gallery, since=since, who=who)
    emit({"lines": lines}, as_json=as_json, text=_describe(lines))


def _describe(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "nothing was logged"
    rows = [
        (line["at"][:19].replace("T", " "), printable_path(line["who"]), printable_path(line["from"]), line["what"],
         _shorten(printable_path(_describe_rest(line))))
        for line in lines
    ]  # fmt: skip
    return "\n".join(align([("when (UTC)", "who", "from", "what", "about"), *rows], right=set()))


def _describe_rest(line: dict[str, Any]) -> str:
    told = {name: value for name, value in line.items() if name not in _NAMED and value not in (None, [], "")}
    decisions = told.pop("decisions", [])
    words = [f"{name} {_write(value)}" for name, value in told.items()]
    return ", ".join([*words, *map(_describe_decision, decisions if isinstance(decisions, list) else [])])


def _describe_decision(decision: Any) -> str:
    if not isinstance(decision, dict):
        return str(decision)
    label = f" to {decision['label']}" if decision.get("label") else ""
    return f"image {decision.get('image')} {decision.get('decision')}{label}"


def _write(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
