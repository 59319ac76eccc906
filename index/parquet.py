"""Label columns of a Parquet file; pyarrow is loaded when the first one is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from index.errors import InputError, MissingDependencyError
from index.images import printable_path


def read_parquet_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """(where it stands, path, label) of every row, from the columns `path` and `label`; an empty label for a null.

    Raises:
        InputError: no Parquet file, not these columns once each, or a path that is no text.
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(package="pyarrow", extra="parquet", purpose="reading Parquet") from error
    shown = printable_path(str(path))
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow
            if columns.names.count("path") != 1 or columns.names.count("label") != 1:
                raise InputError(f"{shown}: expected the columns path,label; found {columns.names}")
            if pyarrow.types.is_nested(columns.field("label").type):
                seen = columns.field("label").type
                raise InputError(f"{shown}: expected labels that are text or numbers, found {seen}")
            row = 0
            for batch in file.iter_batches(columns=["path", "label"]):
                for image, label in zip(batch.column("path"), batch.column("label"), strict=True):
                    row += 1
                    yield f"row {row}", _as_path(image.as_py(), f"{shown}, row {row}"), _as_text(label.as_py())
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown}: not a readable Parquet file: {error}") from error


def _as_path(value: object, where: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise InputError(f"{where}: expected a path as text, found {type(value).__name__}")


def _as_text(label: object) -> str:
    """A label as text; whole numbers lose the `.0` that tables with gaps give them."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return ""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return label.decode("utf-8", "backslashreplace") if isinstance(label, bytes) else str(label)
