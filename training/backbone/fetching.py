"""Weights that a library fetches itself: what goes wrong there is one error that names the way out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from index.errors import InputError


@contextmanager
def fetch_weights(backbone: str) -> Iterator[None]:
    """Turn whatever keeps a library from fetching weights into one error.

    Raises:
        InputError: they could not be fetched.
    """
    try:
        with hushed_library():
            yield
    except (OSError, RuntimeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"the pretrained weights of {backbone} could not be fetched ({told}); fetch them on a connected machine "
            "and pass the file: --weights FILE"
        ) from error


@contextmanager
def hushed_library() -> Iterator[None]:
    """A library's own messages stay off stdout, its tries at a download untold, and logging as it is configured."""
    root, hub, nothing = logging.getLogger(), logging.getLogger("huggingface_hub"), logging.NullHandler()
    level = hub.level
    hub.setLevel(logging.ERROR)
    root.addHandler(nothing)  # a module's function of `logging` would configure a root without handlers
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            yield
    finally:
        root.removeHandler(nothing)
        hub.setLevel(level)
