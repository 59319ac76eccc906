"""Search results as a CSV, Parquet or JSON Lines file, which is there whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from index.durable import make_temporary, put_in_place
from index.errors import InputError
from index.gallery.hits import Hit
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text

COLUMNS = ("query", "rank", "id", "score", "label", "given_label", "path", "source", "metadata")
_GROUP_ROWS = 1 << 16  # of Parquet, held at once


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result of one query."""

    query: str
    hit: Hit

    def values(self) -> tuple[Any, ...]:
        """Its values in the order of `COLUMNS`: metadata as JSON text, undecodable bytes of paths as escapes."""
        hit = self.hit
        return (
            valid_text(self.query), hit.rank, hit.id, hit.score, hit.label, hit.former_label,
            valid_text(hit.path), hit.source, hit.metadata_json,
        )  # fmt: skip


def check_results_path(path: Path) -> None:
    """See that results can be written there, before anything is done for them.

    Raises:
        InputError: the suffix is unknown, or the folder is missing or read-only.
        MissingDependencyError: Parquet without pyarrow.
    """
    shown = printable_path(str(path))
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"{shown}: the suffix says what is written: expected one of {', '.join(_KINDS)}")
    if path.is_dir():
        raise InputError(f"{shown}: a folder has this name; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{shown}: its folder does not exist; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{shown}: permission denied; its folder cannot be written")
    if path.suffix.lower() == ".parquet":
        import_pyarrow("writing Parquet")


@contextmanager
def open_results(path: Path) -> Iterator[Callable[[Sequence[ResultRow]], None]]:
    """A function that writes rows; at the end they take the place of `path`, after an error nothing of them is left.

    Raises:
        InputError: as `check_results_path`, or the disk is full or fails.
        MissingDependencyError: Parquet without pyarrow.
    """
    check_results_path(path)

    def write(rows: Sequence[ResultRow]) -> None:
        with _errors_named(path):
            writer.write(rows)

    with _errors_named(path):
        temporary = make_temporary(path.parent)
        file = temporary.open("wb")
    try:
        with _errors_named(path):
            writer = _KINDS[path.suffix.lower()](file)
        try:
            yield write
            with _errors_named(path):
                writer.finish()
                file.close()
                put_in_place(temporary, path)
        finally:
            writer.discard()
    finally:
        with suppress(OSError):  # of what could not be written, which is of no use now
            file.close()
        temporary.unlink(missing_ok=True)


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "; nothing was left there, mend the cause and run it again"
        raise InputError(
            f"{printable_path(str(path))}: cannot be written: {error.strerror or error}{advice}"
        ) from error


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: Sequence[ResultRow]) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is held back."""

    def discard(self) -> None:
        """Let go of everything; no error after `finish`."""


class _CsvWriter(_Writer):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._write([COLUMNS])

    def write(self, rows: Sequence[ResultRow]) -> None:
        self._write([row.values() for row in rows])

    def _write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        self._file.write(text.getvalue().encode())


class _LinesWriter(_Writer):
    def write(self, rows: Sequence[ResultRow]) -> None:
        for row in rows:
            document = dict(zip(COLUMNS, row.values(), strict=True)) | {"metadata": row.hit.metadata}
            self._file.write(json.dumps(document).encode() + b"\n")


class _ParquetWriter(_Writer):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        pyarrow = import_pyarrow("writing Parquet")
        text, whole = pyarrow.string(), pyarrow.int64()
        kinds = (text, whole, whole, pyarrow.float32(), text, text, text, text, text)
        self._schema = pyarrow.schema(list(zip(COLUMNS, kinds, strict=True)))
        self._pyarrow, self._waiting = pyarrow, list[ResultRow]()
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)

    def write(self, rows: Sequence[ResultRow]) -> None:
        self._waiting += rows
        if len(self._waiting) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*(row.values() for row in self._waiting), strict=True)
        arrays = [
            self._pyarrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        self._waiting.clear()
        self._writer.write_table(self._pyarrow.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        if self._waiting:
            self._flush()
        self._writer.close()

    def discard(self) -> None:
        with suppress(OSError):
            self._writer.close()


_KINDS: dict[str, Callable[[IO[bytes]], _Writer]] = {
    ".csv": _CsvWriter,
    ".jsonl": _LinesWriter,
    ".parquet": _ParquetWriter,
}
