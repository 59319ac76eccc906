"""Paths with `/`, below the root of a source or elsewhere."""

import os
from collections.abc import Iterator


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
