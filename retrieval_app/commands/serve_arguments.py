"""Galleries and token of a server, from the arguments and options of its command."""

import os
import sys
from collections.abc import Sequence
from mimetypes import guess_type
from pathlib import Path

import click
from click.core import ParameterSource

from index.commands.images_or_gallery import ensure_gallery
from index.errors import InputError
from index.markers import BESIDE
from index.text import printable_path
from index.versions.gallery_identity import FolderState, recognise
from retrieval_app.api.security.tokens import is_open_to_others, make_token, read_token_file
from retrieval_app.server.options import ServedGallery, check_names

_GALLERIES = (FolderState.MARKED, FolderState.DAMAGED)  # opening a damaged one says so


def choose_galleries(given: Sequence[str]) -> tuple[ServedGallery, ...]:
    """The galleries of the arguments: [NAME=]GALLERY, images, whose gallery is made, or one folder of galleries."""
    if len(given) == 1 and (listed := list_galleries(Path(given[0]))):
        return tuple(ServedGallery(path, _name(path)) for path in listed)
    named = [_split(text) for text in given]
    if len(named) > 1:
        named = [(name or _name(Path(path)), path) for name, path in named]
    check_names(tuple(ServedGallery(Path(path), name) for name, path in named))  # before any is made
    return tuple(ServedGallery(ensure_gallery(Path(path)), name) for name, path in named)


def list_galleries(folder: Path) -> list[Path]:
    """The galleries that lie side by side in a folder which holds no images; none where it is another folder."""
    if not folder.is_dir() or recognise(folder) is not FolderState.FOREIGN:
        return []
    galleries, images = list[Path](), list[Path]()
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if not path.is_dir():
            images += [path] if (guess_type(path.name)[0] or "").startswith("image/") else []
        elif recognise(path) in _GALLERIES:
            galleries.append(path)
        else:
            return []
    if galleries and images:
        raise InputError(
            f"{printable_path(folder)}: galleries lie beside {printable_path(images[0].name)}, so it is neither a "
            "folder of galleries nor one of images: move it away, or name the galleries one by one"
        )
    return galleries


def _name(path: Path) -> str:
    """`shop` of the folder `shop`, and of the gallery beside it."""
    return Path(os.path.abspath(path)).name.removesuffix(BESIDE)


def _split(text: str) -> tuple[str | None, str]:
    """The name and the path of an argument; a path may hold the sign too."""
    name, sign, path = text.partition("=")
    is_named = sign and path and "/" not in name and not Path(text).exists()
    return (name, path) if is_named else (None, text)


def choose_token(
    context: click.Context,
    *,
    file: Path | None,
    no_token: bool,
    needed: bool,
    writable: bool = False,
    tokens: Path | None = None,
) -> str | None:
    """The token of a server by the options and variables of its command; a `needed` one is made, and shown."""
    given: str | None = context.params["token"]
    is_visible = context.get_parameter_source("token") is ParameterSource.COMMANDLINE
    if sum((is_visible, file is not None, no_token)) > 1:
        raise click.UsageError("--token, --token-file and --no-token exclude one another")
    if tokens is not None and (is_visible or file is not None or no_token):
        raise click.UsageError("--tokens takes the place of --token, --token-file and --no-token")
    if no_token or tokens is not None:
        return None
    if file is not None:
        return read_or_make_token(file)
    if is_visible:
        click.echo("Lists of processes show --token: RETRIEVAL_TOKEN or --token-file keep it to yourself.", err=True)
    return _tell_new(writable=writable) if given is None and needed else given


def read_or_make_token(path: Path) -> str:
    """The token of a file, made if missing; notes about the file go to stderr."""
    is_new = not os.path.lexists(path)
    token, shown = read_token_file(path), printable_path(path)
    if is_new:
        click.echo(f"{shown} has a new token, for your eyes only.", err=True)
    elif is_open_to_others(path):
        click.echo(f"Other users of this machine can read the token in {shown}: chmod 600 stops them.", err=True)
    return token


def _tell_new(*, writable: bool = False) -> str:
    """A new token, shown on a terminal alone: others may read a log."""
    if not sys.stderr.isatty():
        otherwise = "" if writable else "; or --no-token: everyone may search, no one may decide"
        raise InputError(
            "a token is needed where others reach the server or may change the gallery, and there is no terminal to "
            f"show a new one: give --token-file FILE, which is made, or set RETRIEVAL_TOKEN{otherwise}"
        )
    token = make_token()
    click.echo(f"The token of this run, shown only here: {token}", err=True)
    return token
