"""`retrieval tokens`: who may do what on a server, each with a token of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from index.commands.console import emit, output_options
from index.errors import InputError
from index.text import printable_path
from index.text_table import align

if TYPE_CHECKING:
    from retrieval_app.api.security.token_entries import TokenEntry

Command = TypeVar("Command", bound=Callable[..., Any])
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, readable=False))
_name = click.argument("name")


def _days(words: str) -> Callable[[Command], Command]:
    return click.option("--days", type=click.IntRange(1, 3650), help=words)


def _check_rights(_: click.Context, __: click.Parameter, may: tuple[str, ...]) -> tuple[str, ...]:
    from retrieval_app.api.security.rights import check_rights

    try:
        return check_rights(may)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


@click.group()
def tokens() -> None:
    """Give each person and program a token of their own, for `retrieval serve --tokens FILE`.

    The file keeps names, rights and hashes, never the tokens: each is printed once, when it is made. A running server
    sees a change within a second.
    """


@tokens.command(name="add")
@_file
@_name
@click.option(
    "--may", multiple=True, required=True, metavar="RIGHT[:GALLERY]", callback=_check_rights,
    help="read: search and look. review: decide about labels and duplicates too. write: with `serve --writable` add "
    "and remove images too, and all else. metrics: nothing but /v1/metrics. With a colon and its name, of that one "
    "gallery among several of a server alone. Can be repeated.",
)  # fmt: skip
@_days("After how many days it opens nothing any more; without, it has no end.")
@output_options
def add(file: Path, name: str, may: tuple[str, ...], days: int | None, as_json: bool) -> None:
    """Add a token for NAME to FILE, which is made where there is none, and print it: nothing tells it again.

    \b
    Examples:
      retrieval tokens add team.tokens anna --may review
      retrieval tokens add team.tokens shop --may read --days 90
      retrieval tokens add team.tokens prometheus --may metrics
      retrieval tokens add team.tokens ben --may read --may review:shop
    """
    from retrieval_app.api.security.token_file import add_token

    _tell_new(*add_token(file, name, may=may, days=days), as_json=as_json)


@tokens.command(name="list")
@_file
@output_options
def list_all(file: Path, as_json: bool) -> None:
    """List who has a token in FILE, what each may, and until when.

    \b
    Examples:
      retrieval tokens list team.tokens
    """
    from retrieval_app.api.security.token_file import read_token_entries

    entries = read_token_entries(file).entries
    rows = [("name", "may", "made", "until"), *(_describe(entry) for entry in entries)]
    lines = align(rows, right=set()) if entries else [f"{printable_path(str(file))} holds no token"]
    emit({"tokens": [_to_json(entry) for entry in entries]}, as_json=as_json, text="\n".join(lines))


@tokens.command(name="rotate")
@_file
@_name
@_days("After how many days the new one ends; without, it lasts as long as the one before did.")
@output_options
def rotate(file: Path, name: str, days: int | None, as_json: bool) -> None:
    """Put a new token in the place of NAME's, and print it; the one before opens nothing any more.

    \b
    Examples:
      retrieval tokens rotate team.tokens anna
    """
    from retrieval_app.api.security.token_file import rotate_token

    _tell_new(*rotate_token(file, name, days=days), as_json=as_json)


@tokens.command(name="revoke")
@_file
@_name
@output_options
def revoke(file: Path, name: str, as_json: bool) -> None:
    """Take NAME's token out of FILE; whoever is signed in with it is out within a second.

    \b
    Examples:
      retrieval tokens revoke team.tokens anna
    """
    from retrieval_app.api.security.token_file import revoke_token

    entry = revoke_token(file, name)
    emit({"revoked": _to_json(entry)}, as_json=as_json, text=f"{entry.name}: the token opens nothing any more")


def _tell_new(entry: TokenEntry, token: str, *, as_json: bool) -> None:
    emit({**_to_json(entry), "token": token}, as_json=as_json, text=token)
    if not as_json:
        until = "" if entry.expires_at is None else f", until {entry.expires_at:%Y-%m-%d %H:%M} UTC"
        rights = ", ".join(entry.may)
        click.echo(f"The token of {entry.name} (may: {rights}){until}; it is told only here.", err=True)


def _describe(entry: TokenEntry) -> tuple[str, ...]:
    until = "no end" if entry.expires_at is None else f"{entry.expires_at:%Y-%m-%d}"
    return (
        entry.name,
        ", ".join(entry.may),
        f"{entry.made_at:%Y-%m-%d}",
        f"{until} (over)" if entry.is_over() else until,
    )


def _to_json(entry: TokenEntry) -> dict[str, Any]:
    until = entry.expires_at
    return {
        "name": entry.name,
        "may": list(entry.may),
        "made_at": entry.made_at.isoformat(),
        "expires_at": None if until is None else until.isoformat(),
        "over": entry.is_over(),
    }
