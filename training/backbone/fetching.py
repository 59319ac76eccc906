"""Weights that a library fetches itself: what goes wrong there is one error that names the way out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from index.errors import InputError


@contextmanager
def fetch_weights(backbone: str) -> Iterator[None]:
    """Turn whatever keeps a library from fetching weights into one error; its own tries are not told one by one.

    Raises:
        InputError: they could not be fetched.
    """
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            yield
    except (OSError, RuntimeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"the pretrained weights of {backbone} could not be fetched ({told}); fetch them on a connected machine "
            "and pass the file: --weights FILE"
        ) from error
    finally:
        hub.setLevel(level)
