"""Paths with `/`, below the root of a source or elsewhere; the user's cache folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from index.errors import InputError


def below(root: str, path: str) -> str:
    """An absolute normal path, relative to the root where it lies below it."""
    return path.removeprefix(root.rstrip("/") + "/")


def names_no_parent(path: str) -> bool:
    """Whether a path has no part `..`."""
    return ".." not in path.split("/")


def folders_above(path: str) -> Iterator[str]:
    """A path or address, and the folders above it but the root."""
    while path and (above := os.path.dirname(path)) != path:
        yield path
        path = above


def user_cache() -> Path:
    """`retrieval-app` in `$XDG_CACHE_HOME`, or in `~/.cache`; it may be deleted at any time."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-app"
    except RuntimeError as error:
        raise InputError(f"there is no cache folder: {error}; set XDG_CACHE_HOME, or name one with --cache") from error
