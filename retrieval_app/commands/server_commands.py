"""Commands around a server: `retrieval tokens`, `openapi`, `log`, `mcp` and `gradio`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from index.commands.console import PATH, backend_option, emit, output_options
from index.errors import GalleryError, InputError, MissingDependencyError
from index.text import align, printable_path
from index.versions.annotations import ANNOTATIONS

if TYPE_CHECKING:
    from retrieval_app.api.security.tokens import TokenEntry

token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the token that every request has to bring; a missing file is made with a new token.",
)

Command = TypeVar("Command", bound=Callable[..., Any])
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, readable=False))
_name = click.argument("name")
_NAMED = ("at", "who", "from", "what", "request")
_MOST_CHARACTERS = 100


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
    """Manage the access tokens of a server, one per person or program, for `retrieval serve --tokens FILE`.

    FILE has names, rights and hashes, not the tokens: a token is printed once, when it is made. A running server
    follows changes at once.

    \b
    Examples:
      retrieval tokens add team.tokens anna --may review
      retrieval tokens list team.tokens
      retrieval tokens revoke team.tokens anna
    """


@tokens.command(name="add")
@_file
@_name
@click.option(
    "--may",
    multiple=True,
    required=True,
    metavar="RIGHT[:GALLERY]",
    callback=_check_rights,
    help="read: search and look. review: decide about labels and duplicates too. write: with `serve --writable` add "
    "and remove images too. With a colon and its name, of that one "
    "gallery among several of a server alone. Can be repeated.",
)
@_days("After how many days it opens nothing any more; without, it has no end.")
@output_options
def add(file: Path, name: str, may: tuple[str, ...], days: int | None, as_json: bool) -> None:
    """Add a token for NAME to FILE, and print it once.

    FILE is made if it does not exist.

    \b
    Examples:
      retrieval tokens add team.tokens anna --may review
      retrieval tokens add team.tokens shop --may read --days 90
      retrieval tokens add team.tokens ben --may read --may review:shop
    """
    from retrieval_app.api.security.tokens import add_token

    _tell_new(*add_token(file, name, may=may, days=days), as_json=as_json)


@tokens.command(name="list")
@_file
@output_options
def list_all(file: Path, as_json: bool) -> None:
    """List the tokens of FILE: names, rights and expiry.

    \b
    Examples:
      retrieval tokens list team.tokens
      retrieval tokens list team.tokens --json
      retrieval tokens list /etc/retrieval/team.tokens
    """
    from retrieval_app.api.security.tokens import read_token_entries

    entries = read_token_entries(file).entries.values()
    rows = [("name", "may", "made", "until")]
    for entry in entries:
        until = "no end" if entry.expires_at is None else f"{entry.expires_at:%Y-%m-%d}"
        until += " (over)" if entry.is_over() else ""
        rows.append((entry.name, ", ".join(entry.may), f"{entry.made_at:%Y-%m-%d}", until))
    lines = align(rows, right=set()) if entries else [f"{printable_path(file)} holds no token"]
    emit({"tokens": [_to_json(entry) for entry in entries]}, as_json=as_json, text="\n".join(lines))


@tokens.command(name="rotate")
@_file
@_name
@_days("After how many days the new one ends; without, it lasts as long as the one before did.")
@output_options
def rotate(file: Path, name: str, days: int | None, as_json: bool) -> None:
    """Replace the token of NAME, and print the new one once.

    The old token is refused from then on.

    \b
    Examples:
      retrieval tokens rotate team.tokens anna
      retrieval tokens rotate team.tokens shop --days 90
      retrieval tokens rotate team.tokens anna --json
    """
    from retrieval_app.api.security.tokens import rotate_token

    _tell_new(*rotate_token(file, name, days=days), as_json=as_json)


@tokens.command(name="revoke")
@_file
@_name
@output_options
def revoke(file: Path, name: str, as_json: bool) -> None:
    """Remove the token of NAME from FILE.

    Sessions that used it end.

    \b
    Examples:
      retrieval tokens revoke team.tokens anna
      retrieval tokens revoke team.tokens shop --json
      retrieval tokens revoke /etc/retrieval/team.tokens anna
    """
    from retrieval_app.api.security.tokens import revoke_token

    entry = revoke_token(file, name)
    emit({"revoked": _to_json(entry)}, as_json=as_json, text=f"{entry.name}: the token opens nothing any more")


def _tell_new(entry: TokenEntry, token: str, *, as_json: bool) -> None:
    emit({**_to_json(entry), "token": token}, as_json=as_json, text=token)
    if not as_json:
        until = "" if entry.expires_at is None else f", until {entry.expires_at:%Y-%m-%d %H:%M} UTC"
        rights = ", ".join(entry.may)
        click.echo(f"The token of {entry.name} (may: {rights}){until}; it is shown only here.", err=True)


def _to_json(entry: TokenEntry) -> dict[str, Any]:
    until = entry.expires_at
    return {
        "name": entry.name,
        "may": list(entry.may),
        "made_at": entry.made_at.isoformat(),
        "expires_at": None if until is None else until.isoformat(),
        "over": entry.is_over(),
    }


@click.command()
@output_options
def openapi(as_json: bool) -> None:
    """Print the OpenAPI document of the HTTP API, for generating clients.

    It needs no gallery and no server, and is JSON with or without --json. A server has it at /v1/openapi.json, without
    the token where it asks for none.

    \b
    Examples:
      retrieval openapi
      retrieval openapi > openapi.json
      retrieval openapi > openapi.json && openapi-python-client generate --path openapi.json
    """
    from retrieval_app.api.document import describe_api

    click.echo(json.dumps(describe_api(), indent=2))


@click.command()
@click.argument("gallery", type=PATH)
@click.option(
    "--writable",
    is_flag=True,
    help="Let agents decide about labels; people can undo it. Images are never added or removed.",
)
@backend_option
@output_options
def mcp(gallery: Path, writable: bool, as_json: bool) -> None:
    """Serve a gallery to an agent over the Model Context Protocol (MCP).

    Agents search, look at images and read label issues; with --writable they also decide about labels. GALLERY may also
    be images, as with `retrieval serve`. The agent starts the command itself and speaks over standard input and output,
    on another machine through ssh.

    \b
    Examples:
      retrieval mcp gallery
      retrieval mcp photos --writable
      claude mcp add photos -- retrieval mcp /data/gallery
    """
    if as_json:
        raise click.UsageError("--json: standard output belongs to the protocol, which is JSON itself")
    try:
        from retrieval_app.server.serve_agents import serve_agents
    except ModuleNotFoundError as error:
        extra = "agents" if (error.name or "").startswith("mcp") else "serve"
        raise MissingDependencyError(package=error.name or "mcp", extra=extra, purpose="serving agents") from error

    from index.commands.images_or_gallery import ensure_gallery

    serve_agents(ensure_gallery(gallery), writable=writable)


@click.command()
@click.argument("gallery", type=PATH)
@click.option("--open/--no-open", "open_browser", default=False, help="Open the app in the default browser.")
@click.option(
    "--port", type=click.IntRange(1, 65535), show_default="the first free one from 7860 on", help="Port on 127.0.0.1."
)
@output_options
def gradio(gallery: Path, open_browser: bool, port: int | None, as_json: bool) -> None:
    """Serve a gallery as a Gradio app on this machine: search by a photo or an image, with filters.

    GALLERY may also be images, as with `retrieval serve`. Only programs of this machine reach it; Ctrl-C ends it, and
    removes the uploaded photos. Python's `build_app` also makes the app, with a password, for notebooks and Spaces.

    \b
    Examples:
      retrieval gradio gallery
      retrieval gradio photos --open
      retrieval gradio gallery --port 8000
    """
    from index.commands.images_or_gallery import ensure_gallery
    from retrieval_app.gradio_app import build_app

    folder = ensure_gallery(gallery)
    with TemporaryDirectory(prefix="retrieval-gradio-", ignore_cleanup_errors=True) as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads
        app = build_app(folder)
        try:
            url = app.launch_here(port=port, inbrowser=open_browser)
            click.echo(json.dumps({"url": url}) if as_json else url)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with suppress(KeyboardInterrupt):  # the usual way to end it
                threading.Event().wait()
        finally:
            app.close(verbose=False)


@click.command(name="log")
@click.argument("gallery", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--since", type=click.DateTime(), metavar="TIME", help="Only from this day or time on, such as 2026-11-01; UTC."
)
@click.option("--who", metavar="NAME", help="Only what this name did: that of a token, or 'this machine'.")
@output_options
def log(gallery: Path, since: datetime | None, who: str | None, as_json: bool) -> None:
    """Show who changed what in a gallery, and when (UTC).

    Lines are decisions and undone ones; through a server also images added and removed, updates, ended jobs, exports,
    sign-ins and sign-outs, and wrong tokens with their address. Who is the name of a token (see `retrieval tokens`),
    'the token' if there is one for all, 'this machine', 'a visitor', 'an agent' (of `retrieval mcp --writable`), 'the
    command line', or 'the server'. Other refused requests are not in it.

    \b
    Examples:
      retrieval log gallery
      retrieval log gallery --since 2026-11-01
      retrieval log gallery --who anna --json
    """
    from index.versions.gallery_parts import describe_no_gallery
    from retrieval_app.review.activity_log import read_log

    if not (gallery / ANNOTATIONS).is_dir() and not (gallery / "CURRENT").exists():
        raise GalleryError(printable_path(gallery), describe_no_gallery(gallery))
    lines = read_log(gallery, since=None if since is None else since.replace(tzinfo=UTC), who=who)
    emit({"lines": lines}, as_json=as_json, text=_show_log(lines))


def _show_log(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "nothing was logged"
    rows = [("when (UTC)", "who", "from", "what", "about")]
    for line in lines:
        details = {name: value for name, value in line.items() if name not in _NAMED and value not in (None, [], "")}
        decisions = details.pop("decisions", [])
        words = [
            f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in details.items()
        ]
        for one in decisions if isinstance(decisions, list) else []:
            if not isinstance(one, dict):  # a restored log may hold anything
                continue
            label = f" to {one['label']}" if one.get("label") else ""
            words.append(f"image {one.get('image')} {one.get('decision')}{label}")
        about = printable_path(", ".join(words))
        about = about if len(about) <= _MOST_CHARACTERS else f"{about[: _MOST_CHARACTERS - 1]}…"
        when, who, address, what = (printable_path(line[name]) for name in ("at", "who", "from", "what"))
        rows.append((when[:19].replace("T", " "), who, address, what, about))
    return "\n".join(align(rows, right=set()))
