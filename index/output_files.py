"""Folders that a command fills with files of fixed names: none is replaced that the command did not write."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from index.durable import replacing
from index.errors import InputError
from index.text import printable_path


def check_own_files(folder: Path, names: Sequence[str], *, header: Sequence[str]) -> None:
    """See that nothing is in the way of files, of which the first is a CSV table that begins with a header.

    What is there may be replaced where that table is one of the command's own.

    Raises:
        InputError: a file of somebody else has one of the names.
    """
    taken = [name for name in names if os.path.lexists(folder / name)]
    if taken and not _begins_with(folder / names[0], ",".join(header).encode()):
        raise InputError(
            f"{printable_path(str(folder / taken[0]))}: exists already, and is not what this command writes there; "
            "move it away, or give another --out"
        )


def _begins_with(path: Path, start: bytes) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replace a CSV file atomically; undecodable bytes of paths stay what they are."""
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
