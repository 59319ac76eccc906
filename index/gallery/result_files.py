"""Result files of searches, CSV, written atomically."""

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from index.durable import replacing
from index.errors import InputError
from index.gallery.ranking import Hit
from index.text import printable_path, valid_text

COLUMNS = ("query", "rank", "id", "score", "label", "given_label", "path", "source", "metadata")


Result = tuple[str, Hit]
"""The name of a query, and one of its hits."""
Write = Callable[[Sequence[Result]], None]


def _values(result: Result) -> tuple[Any, ...]:
    """In the order of `COLUMNS`: metadata as JSON text, undecodable bytes of paths as escapes."""
    query, hit = result
    row = hit.row
    assert row is not None
    own = (hit.rank, hit.id, hit.score, hit.label, row.former_label, valid_text(hit.path), hit.source)
    return (valid_text(query), *own, row.metadata_json)


def check_results_path(path: Path) -> None:
    if path.suffix.lower() != ".csv":
        raise InputError("expected a name that ends in .csv", at=path)
    if path.is_dir():
        raise InputError("a folder has this name; name a file", at=path)
    if not path.parent.is_dir():
        raise InputError("its folder does not exist; make it first", at=path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError("permission denied; its folder cannot be written", at=path)


@contextmanager
def open_results(path: Path) -> Iterator[Write]:
    """A function that writes rows to a file, which replaces `path` at the end; errors of the caller pass unchanged."""
    check_results_path(path)
    stopped: BaseException | None = None
    try:
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)

            def write(rows: Sequence[Result]) -> None:
                try:
                    writer.writerows(map(_values, rows))
                except OSError as error:
                    raise _unwritable(path, error) from error

            try:
                yield write
            except BaseException as error:  # the caller's, which no error of the file may hide
                stopped = error
                raise
    except OSError as error:
        if stopped is error:
            raise
        if stopped is not None:
            raise stopped from error
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> InputError:
    advice = "nothing was left there, mend the cause and run it again"
    return InputError(f"{printable_path(path)}: cannot be written: {error.strerror or error}; {advice}")
