"""The path below which a server lives where a proxy gives it a part of a site only."""

from __future__ import annotations

import re

from index.errors import InputError
from index.text import printable_path

_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_OWN = frozenset(("v1", "page", "gradio", "docs", "g"))  # with which the server's own addresses begin


def check_root_path(text: str) -> str:
    """A path as it is put before addresses: with a slash at its start and none at its end, or nothing for `/`.

    Raises:
        InputError: it is none.
    """
    path = text.removesuffix("/")
    if path and _PATH.fullmatch(path) is None:
        raise InputError(f"--root-path {printable_path(text)}: expected a path of plain names, as /photos")
    if path.split("/", 2)[1:2] and path.split("/", 2)[1] in _OWN:
        raise InputError(
            f"--root-path {printable_path(text)}: the server has addresses of its own there; choose another, as /photos"
        )
    return path


def strip_root_path(path: str, root: str) -> str | None:
    """The address within the server; an empty one for the root itself without its slash.

    None where it does not begin with the root path: the proxy has taken that away before.
    """
    if not root or not path.startswith(root):
        return None
    rest = path[len(root) :]
    return rest if not rest or rest.startswith("/") else None
