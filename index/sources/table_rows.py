"""Tables of images: CSV, TSV, Parquet and JSON lines; pyarrow is imported for the first Parquet file."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from index.errors import InputError, MissingDependencyError, missing_imports_as_dependency_errors, reading
from index.items import FoundItem
from index.limits import MAX_FILE_BYTES
from index.text import printable_path, valid_text

_BATCH_ROWS, _BATCH_BYTES = 4096, 1 << 26  # of Parquet, held at once
_MAX_EXPANSION = 1000  # of a row group of more bytes; no photos or texts are packed that well
_MAX_ROW_CHARACTERS = 1 << 20  # of label and metadata, as for a sidecar
_MAX_CSV_CHARACTERS = 1 << 24  # of a cell
_MAX_PATH_CHARACTERS = 1 << 16
_DICTIONARY_BYTES = 1 << 23  # of a Parquet column whose dictionary is kept: few long texts may stand for many rows
_csv_limit = threading.Lock()
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_INT64 = range(-(2**63), 2**63)
_TOO_LONG: Any = object()  # replaces a cell that is too long
TABLE_SUFFIXES = (".csv", ".parquet", ".tsv", ".jsonl")
_ADDRESS = re.compile(r"(?P<table>.+\.(?:csv|parquet|tsv|jsonl))#(?P<columns>[^#]*)", re.IGNORECASE | re.DOTALL)
_EXAMPLE = "photos.csv#path=image,label=category"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The names of the columns of paths (or addresses, where `role` is `url`) and labels."""

    path: str = "path"
    label: str = "label"
    role: str = "path"

    def __post_init__(self) -> None:
        if not self.path or not self.label or self.path == self.label:
            raise InputError(f"{self.role} and label are two columns of a table, got {self.path!r} and {self.label!r}")


USUAL = TableColumns()


def split_address(text: str) -> tuple[str, dict[str, str]]:
    """Split `photos.csv#path=image,label=category` into the file and the column names by role; never a file's name.

    >>> split_address("photos.csv#label=category"), split_address("photos.csv")
    (('photos.csv', {'label': 'category'}), ('photos.csv', {}))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or os.path.isfile(text):
        return text, {}
    pairs = [part.partition("=") for part in match["columns"].split(",")]
    names = {role: unquote(name) for role, _, name in pairs}
    known = {"label", "url" if "url" in names else "path"}
    if len(names) < len(pairs) or not names.keys() <= known or not all(names.values()):
        problem = f"expected names of the columns path (or url) and label after #, as in {_EXAMPLE}"
        raise InputError(problem, at=text)
    return match["table"], names


def make_address(table: str, columns: TableColumns) -> str:
    """The inverse of `split_address`; the file's name alone with the default columns."""
    names = ((columns.role, columns.path), ("label", columns.label))
    said = ",".join(f"{role}={quote(name, safe=' ')}" for role, name in names if name != role)
    return f"{table}#{said}" if said else table


def say_columns(text: str, **columns: str) -> str:
    """Add column names, by role, to the address of a table; names that it has stay, and other texts pass unchanged."""
    table, said = split_address(text)
    names = {**columns, **said}
    if not names or not table.lower().endswith(TABLE_SUFFIXES):
        return text
    return f"{table}#" + ",".join(f"{role}={quote(name, safe=' ')}" for role, name in names.items())


Row = tuple[str, FoundItem]
"""The position of a row for messages, as "line 3", and the item that it describes.

Its path is as written, its label stripped: "" for an empty one, None without such a column. `metadata` has the other
columns as JSON values, without nulls and empty CSV cells. A row with a problem has neither label nor metadata.
"""


def read_table_rows(
    path: Path,
    *,
    columns: TableColumns = USUAL,
    required: tuple[str, ...] = ("path",),
    metadata: bool = True,
    checked: bool = True,
) -> Iterator[Row]:
    """Read a table in order: Parquet or JSON lines by the suffix `.parquet` or `.jsonl`, else CSV.

    Columns of the roles in `required` must be there; `metadata` reads the others; with `checked` a row without a usable
    path is an error.
    """
    read = {".parquet": _read_parquet, ".jsonl": _read_json_lines}.get(path.suffix.lower(), _read_csv)
    with reading(path):
        for where, cells in read(path, columns, required, metadata=metadata):
            row = make_row(where, cells, columns, at=path, metadata=metadata, are_texts=read is _read_csv)
            if checked and (not row.path or "\0" in row.path or len(row.path) > _MAX_PATH_CHARACTERS):
                problem = "is empty" if not row.path else "has a NUL in it" if "\0" in row.path else "is far too long"
                raise InputError(f"the path {problem}", at=path, where=where)
            yield where, row


def make_row(
    where: str,
    cells: dict[str, Any],
    columns: TableColumns,
    *,
    at: Path,
    metadata: bool = True,
    are_texts: bool = False,
) -> FoundItem:
    """A row of its cells by column; one with far too much text has a problem. `are_texts` need no conversion."""
    path = cells.pop(columns.path, None) or ""
    if path is _TOO_LONG or not isinstance(path, str):
        is_text = path is _TOO_LONG
        problem = "the path is far too long" if is_text else f"expected a path as text, found {type(path).__name__}"
        raise InputError(problem, at=at, where=where)
    if _TOO_LONG not in cells:
        label = as_text(cells.pop(columns.label)).strip() if columns.label in cells else None
        if not are_texts:
            cells = as_json_object(cells) if metadata else {}
        if _count_characters(label) + _count_characters(cells) <= _MAX_ROW_CHARACTERS:
            return FoundItem(path, 0, 0, label=label, metadata=cells)
    problem = f"{where} of the table has more than {_MAX_ROW_CHARACTERS} characters beside the path"
    return FoundItem(path, 0, 0, metadata={}).with_problem("oversized-row", problem)


def _count_characters(value: Any) -> int:
    """About the length of the value as JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _count_characters(item) for name, item in value.items())
    return sum(map(_count_characters, value)) if isinstance(value, list) else 8


def read_column_names(path: Path) -> list[str]:
    """The column names of a CSV or Parquet file; none where it cannot be read, which `read_table_rows` reports."""
    try:
        if path.suffix.lower() == ".parquet":
            with import_pyarrow("reading Parquet").parquet.ParquetFile(path) as file:
                return list(file.schema_arrow.names)
        with path.open(newline="", encoding="utf-8-sig") as text:
            first = text.readline(_MAX_PATH_CHARACTERS)
            return next(csv.reader([first], delimiter=_find_delimiter(first)), [])
    except (OSError, ValueError, csv.Error, MissingDependencyError):  # pyarrow's errors are among these
        return []


def first_rows(
    table: Path | str, rows: Iterable[Row], find_path: Callable[[str], str]
) -> Iterator[tuple[str, str, FoundItem]]:
    """The first row of every path that `find_path` gives; an InputError where a later row has another label."""
    labels: dict[str, str | None] = {}
    same: dict[str | None, str | None] = {}  # one object for each label
    for where, row in rows:
        path = find_path(row.path)
        if path not in labels:
            labels[path] = same.setdefault(row.label, row.label)
            yield path, where, row
        elif labels[path] != row.label:
            problem = f"{printable_path(row.path)} is labelled {row.label!r} here and {labels[path]!r} above; keep one"
            raise InputError(problem, at=table, where=where)


def folder_label(relative_path: str) -> str | None:
    """The first folder of a `/`-separated path below the root; None for a file in the root itself.

    >>> folder_label("cats/indoor/1.jpg"), folder_label("1.jpg")
    ('cats', None)
    """
    first, separator, _ = relative_path.partition("/")
    return valid_text(first) if separator else None


def find_table(text: str | Path, columns: TableColumns = USUAL) -> tuple[Path, TableColumns]:
    """The file and the columns of a table; column names in its address override `columns`."""
    table, said = split_address(str(text))
    if "url" in said:
        raise InputError("expected a table of files with a column path, found a list of addresses", at=text)
    return Path(table), replace(columns, **said)


def read_labels(path: Path, *, columns: TableColumns = USUAL) -> dict[str, str]:
    """Labels by absolute normal image path, from a CSV or Parquet table.

    Paths are relative to the table's folder, or absolute. An empty label, or a null, leaves the image unlabelled;
    numbers become text.
    """
    path, columns = find_table(path, columns)
    if not path.is_file():
        raise InputError("no such label file", at=path)
    labels: dict[str, str] = {}
    rows = read_table_rows(path, columns=columns, required=("path", "label"), metadata=False)
    for image, _, row in first_rows(path, rows, _find_image(path)):
        if row.problem is not None:
            raise InputError(row.problem.detail, at=path)
        if row.label:
            labels[image] = row.label
    return labels


def read_column(path: Path, name: str, *, columns: TableColumns = USUAL) -> dict[str, str]:
    """Texts of a column by absolute normal image path; images without one are left out."""
    path, columns = find_table(path, columns)
    texts: dict[str, str] = {}
    find_image = _find_image(path)
    for where, row in read_table_rows(path, columns=columns):
        image, value = find_image(row.path), (row.metadata or {}).get(name)
        text = "" if isinstance(value, dict | list) else as_text(value).strip()
        if texts.setdefault(image, text) != text:
            problem = f"{printable_path(row.path)} has another value of {name!r} above; keep one"
            raise InputError(problem, at=path, where=where)
    return {image: text for image, text in texts.items() if text}


def _find_image(table: Path) -> Callable[[str], str]:
    """The absolute normal path of a path in a table."""
    root = str(table.resolve().parent)
    return lambda path: os.path.normpath(os.path.join(root, path))


def as_json(value: Any) -> Any:
    """A value of a table or sidecar as JSON: times as ISO text, durations in seconds, infinities as null."""
    if isinstance(value, str):
        return valid_unicode(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {as_text(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return valid_unicode(str(value))


def as_json_object(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row or sidecar by name as JSON, without nulls."""
    converted = ((valid_unicode(name), as_json(value)) for name, value in values.items())
    return {name: value for name, value in converted if value is not None}


def as_text(label: object) -> str:
    """A label as text: whole numbers without `.0`, which columns with gaps have; nulls are empty."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    text = label.decode("utf-8", "backslashreplace") if isinstance(label, bytes) else str(label)
    return valid_unicode(text)


def valid_unicode(text: str) -> str:
    r"""Text in which lone surrogates, which JSON can hold, are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_Rows = Iterator[tuple[str, dict[str, Any]]]
"""The position of each row, for messages, and its cells by column."""


def _read_csv(path: Path, columns: TableColumns, required: Collection[str], *, metadata: bool) -> _Rows:
    named = (columns.path, columns.label)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline(_MAX_PATH_CHARACTERS)
            delimiter = "\t" if path.suffix.lower() == ".tsv" else _find_delimiter(first)
            file.seek(0)
            rows = csv.DictReader(file, delimiter=delimiter)
            found = list(rows.fieldnames or [])
            _require_columns(found, columns, required, at=path)
            others = [name for name in found if name and name not in named] if metadata else []
            while (row := _next_row(rows)) is not None:
                cells: dict[str, Any] = {name: row[name] for name in named if name in found}
                cells |= {name: _as_number(text) for name in others if (text := row[name])}
                yield f"line {rows.line_num}", cells
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a readable UTF-8 CSV file: {error}; save it as CSV in UTF-8", at=path) from error


def _read_json_lines(path: Path, columns: TableColumns, required: Collection[str], *, metadata: bool) -> _Rows:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_CSV_CHARACTERS), ""), start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} has {type(row).__name__}, expected an object")
                if columns.path not in row:
                    _require_columns(list(row), columns, required, at=path, where=f"line {number}")
                elif not isinstance(row[columns.path], str):
                    row[columns.path] = None
                yield f"line {number}", row
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"no readable JSON lines: {error}", at=path) from error


def _next_row(rows: csv.DictReader[str]) -> dict[str, Any] | None:
    """The next row; raises csv's global limit on cells for its duration."""
    with _csv_limit:
        limit = csv.field_size_limit(_MAX_CSV_CHARACTERS)
        try:
            return next(rows, None)
        finally:
            csv.field_size_limit(limit)


def _require_columns(
    found: list[str], columns: TableColumns, required: Collection[str], *, at: Path, where: str = ""
) -> None:
    """Refuse a table in which a required or explicitly named column is missing or there twice."""
    named = {"path": columns.path, "label": columns.label}
    seen = ", ".join(printable_path(name or "") for name in found) or "none"
    wanted = [name for role, name in named.items() if role in required or name != role]
    if missing := [name for name in wanted if name not in found]:
        addresses = "; a list of addresses has a column url, or says #url=NAME" if columns.role == "path" else ""
        close = [match for name in missing for match in get_close_matches(name, [one or "" for one in found], n=1)]
        meant = f"; did you mean {' and '.join(map(printable_path, close))}?" if close else "."
        problem = (
            f"expected a column {' and a column '.join(missing)}; found {seen}{meant} Say what they are called after "
            f"the table's name, as #{columns.role}=image,label=category, or, where a command has them, with "
            f"--{columns.role}-column and --label-column{addresses}"
        )
        raise InputError(problem, at=at, where=where)
    if twice := [name for name in named.values() if found.count(name) > 1]:
        raise InputError(f"the column {twice[0]} is there twice; found {seen}", at=at, where=where)


def _find_delimiter(header: str) -> str:
    """The delimiter of a table: comma, semicolon or tab, the first that its header has."""
    return next((sign for sign in ",;\t" if sign in header), ",")


def _as_number(text: str) -> str | int | float:
    """A number written as in JSON; anything else stays text."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 40:
        return text
    if match[2] or match[3]:
        return float(text) if math.isfinite(float(text)) else text
    return int(text) if int(text) in _INT64 else text


def import_pyarrow(purpose: str) -> Any:
    with missing_imports_as_dependency_errors(purpose):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def _read_parquet(path: Path, columns: TableColumns, required: Collection[str], *, metadata: bool) -> _Rows:
    pyarrow = import_pyarrow("reading Parquet")
    try:
        with pyarrow.parquet.ParquetFile(path, read_dictionary=_long_columns(path)) as file:
            schema = file.schema_arrow
            _require_columns(schema.names, columns, required, at=path)
            check_labels(schema, columns.label, at=path)
            read = None if metadata else [name for name in (columns.path, columns.label) if name in schema.names]
            rows = (row for batch in read_batches(file, columns=read) for row in batch_rows(batch))
            for number, row in enumerate(rows, start=1):
                yield f"row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"not a readable Parquet file: {error}", at=path) from error


def check_labels(schema: Any, name: str, *, at: Path) -> None:
    """Refuse a column of labels, if there is one, that has other values than texts and numbers."""
    from pyarrow import types

    if name in schema.names and types.is_nested(seen := schema.field(name).type):
        raise InputError(f"expected labels that are text or numbers, found {seen}", at=at)


def _long_columns(path: Path) -> list[str]:
    """Columns whose dictionary is large: read as dictionaries, not expanded row by row."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sorted(
        {
            chunk.path_in_schema
            for chunk in chunks
            if chunk.physical_type == "BYTE_ARRAY"
            and chunk.has_dictionary_page
            and chunk.total_uncompressed_size > _DICTIONARY_BYTES
        }
    )


def read_batches(file: Any, *, columns: list[str] | None) -> Iterator[Any]:
    """Batches of the table, of fewer rows where rows are long; few bytes that would unpack to very many are refused."""
    from pyarrow import ArrowInvalid

    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        packed = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if row_bytes > MAX_FILE_BYTES or group.total_byte_size > max(_BATCH_BYTES, _MAX_EXPANSION * packed):
            raise ArrowInvalid(
                f"row group {number + 1} unpacks {packed} bytes to {group.total_byte_size}, at most "
                f"{_MAX_EXPANSION} times as many and {MAX_FILE_BYTES} a row are read; write it with smaller row groups"
            )
        rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // row_bytes))
        yield from file.iter_batches(rows, row_groups=[number], columns=columns)


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Rows as Python values; `_TOO_LONG` replaces long values, and is a key of such a row."""
    names, columns = batch.schema.names, [_plain(column) for column in batch.columns]
    checked = [
        (name, column) for name, column in zip(names, columns, strict=True) if column.nbytes > _MAX_ROW_CHARACTERS
    ]
    for number, values in enumerate(zip(*columns, strict=True)):
        long = {name for name, column in checked if _is_long(column, number)}
        cells = zip(names, values, strict=True)
        row = {name: _TOO_LONG if name in long else _as_python(value) for name, value in cells}
        yield row | dict.fromkeys([_TOO_LONG], True) if long else row


def _is_long(column: Any, number: int) -> bool:
    """Whether one cell has too many bytes, without converting it."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        index = column.indices[number].as_py()
        return index is not None and bool(column.dictionary.slice(index, 1).nbytes > _MAX_ROW_CHARACTERS)
    return bool(column.slice(number, 1).nbytes > _MAX_ROW_CHARACTERS)


def _plain(column: Any) -> Any:
    """A column with nanoseconds cast to microseconds, the precision of Python's times."""
    from pyarrow import duration, timestamp, types

    kind = column.type
    if types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(timestamp("us", kind.tz), safe=False)
    return column.cast(duration("us"), safe=False) if kind == duration("ns") else column


def _as_python(scalar: Any) -> Any:
    """The value of one cell; None for a time out of Python's range."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return None
