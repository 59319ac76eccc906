"""What the files of a dataset tell of scenes: their names, when they were taken, and what a table says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from index.evaluation.scenes import Clues
from index.images.taken_time import read_taken_time


def read_clues(paths: Sequence[Path], *, groups: Sequence[str | None], hashes: Sequence[str]) -> Clues:
    """Clues about N images.

    Args:
        paths: of their files; a time is the camera's, or else when the file was written.
        groups: what a table says, None where nothing.
        hashes: SHA-256 of their bytes; equal ones are copies.
    """
    copies = np.unique(np.array(hashes), return_inverse=True)[1].astype(np.int64)
    times = np.array([_read_time(path) for path in paths], dtype=np.float64)
    return Clues([str(path) for path in paths], times, given=groups, copies=copies)


def join_clues(first: Clues, second: Clues, *, hashes: Sequence[str]) -> Clues:
    """Clues about the images of both; the hashes are of all of them."""
    copies = np.unique(np.array(hashes), return_inverse=True)[1].astype(np.int64)
    times = np.concatenate([first.times, second.times])
    return Clues(
        [*first.names, *second.names], times, given=[*(first.given or ()), *(second.given or ())], copies=copies
    )


def _read_time(path: Path) -> float:
    taken = read_taken_time(path)
    if taken is not None:
        return taken
    try:
        return path.stat().st_mtime
    except OSError:
        return float("nan")
