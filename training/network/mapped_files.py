"""Arrays of a row an image (or view) in files that are mapped into memory: told beforehand, filled once, shared."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.durable import sync_path, write_durably
from index.errors import InputError
from index.progress import Progress, no_progress

_NOTED_EVERY = 512  # rows

Produce = Callable[[int], Iterator[npt.NDArray[Any]]]
"""Called with the row to begin with; gives (n, …) rows from there on, some at a time."""


@dataclass(frozen=True, slots=True)
class MappedArray:
    """Where an array will lie, and how many bytes it takes.

    Attributes:
        file: its name depends on all that its rows depend on.
        shape: (rows, …)
        dtype: as NumPy names it.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Of the file."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def open(self) -> npt.NDArray[Any]:
        """Read-only, once it is filled."""
        return np.memmap(self.file, dtype=self.dtype, mode="r", shape=self.shape)

    def fill(self, produce: Produce, *, progress: Progress = no_progress) -> None:
        """Write all rows, unless that is done; those that an interrupted call has written are not produced again.

        Where another process fills it, this one waits for that.

        Args:
            progress: called with (rows written, rows).

        Raises:
            OSError: the file cannot be written.
        """
        if self.file.exists():
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lock = self.file.with_suffix(".lock")
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not self.file.exists():
                self._fill(produce, progress)
            lock.unlink(missing_ok=True)  # whoever waits for it finds the file

    def _fill(self, produce: Produce, progress: Progress) -> None:
        unfinished, note = self.file.with_suffix(".part"), self.file.with_suffix(".json")
        done = _read_note(note) if unfinished.exists() and unfinished.stat().st_size == self.bytes else 0
        array = np.memmap(unfinished, dtype=self.dtype, mode="r+" if done else "w+", shape=self.shape)
        noted = done
        with closing(produce(done)) as parts:  # type: ignore[type-var]
            try:
                for rows in parts:
                    array[done : done + len(rows)] = rows
                    done += len(rows)
                    progress(done, len(array))
                    if done - noted >= _NOTED_EVERY:
                        noted = done
                        array.flush()
                        write_durably(note, json.dumps(done).encode())
            finally:
                array.flush()
                write_durably(note, json.dumps(done).encode())
        sync_path(unfinished)
        unfinished.replace(self.file)
        note.unlink(missing_ok=True)


def require_space(arrays: Sequence[MappedArray], *, what: str, instead: str) -> None:
    """Refuse before any work what the disk cannot take.

    Args:
        arrays: in one folder; those that are filled need no more.
        what: they hold.
        instead: what to do.

    Raises:
        InputError: with the bytes needed and those free.
    """
    missing = [array for array in arrays if not array.file.exists()]
    if not missing:
        return
    folder = missing[0].file.parent
    folder.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(folder).free, sum(array.bytes for array in missing)
    if needed > free:
        raise InputError(
            f"{folder}: {what} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; {instead}"
        )


def _read_note(note: Path) -> int:
    try:
        return int(json.loads(note.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return 0
