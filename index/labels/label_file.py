"""The one writer of label files: CSV in UTF-8 whose columns `path,label` training and building read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

HEADER = ("path", "label")
_ROWS_AT_ONCE = 1000


def encode_labels(rows: Iterable[Sequence[str]], *, more_columns: Sequence[str] = ()) -> Iterator[bytes]:
    """The file in blocks, from rows of path, label and what else there is.

    Nothing is put before what a spreadsheet would take for a formula: the file is read back by programs.
    """
    lines = chain([(*HEADER, *more_columns)], rows)
    while block := list(islice(lines, _ROWS_AT_ONCE)):
        text = io.StringIO(newline="")
        csv.writer(text).writerows(block)
        yield text.getvalue().encode()


def can_be_named(path: str) -> bool:
    """Whether a path is text, so that a label file, which is UTF-8, can say it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
