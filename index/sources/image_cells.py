"""Images in cells of Parquet files, as Hugging Face `datasets` writes them; unpacked once into the spool."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.errors import InputError, MissingDependencyError
from index.images.decode import FIRST_BYTES, suffix_of
from index.items import FoundItem
from index.sources.archive_members import safe_name, unique_name
from index.sources.table_rows import (
    TableColumns,
    batch_rows,
    check_labels,
    import_pyarrow,
    make_row,
    read_batches,
    valid_unicode,
)
from index.sources.unpacking import DamagedError
from index.text import printable_path

_PURPOSE = "reading images in Parquet files"
_SPOOL_START = b"cells\0\0\0"  # before the cells in the spool; no compressed file begins like it
_PLAIN_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")  # of bytes without a path
_SHARD = re.compile(r"(\w[\w.]*)-\d{5}-of-\d{5}\.\w+", re.ASCII)  # train-00000-of-00002.parquet
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class CellColumns:
    """The column of images, its leaf of bytes, the names of classes by column, and the usual column of labels."""

    image: str
    leaf: str
    classes: Mapping[str, list[str]]
    label: str


def has_image_cells(file: str) -> bool:
    """Whether a file is Parquet with a column of images, and no column `path`, which would name files."""
    if not file.lower().endswith(".parquet") or not os.path.isfile(file):
        return False
    try:
        pyarrow = import_pyarrow(_PURPOSE)
    except MissingDependencyError:
        return False
    try:
        with _open(Path(file)) as (schema, _):
            return "path" not in schema.names and find_columns(schema) is not None
    except (pyarrow.ArrowException, OSError, ValueError):
        return False


def find_columns(schema: Any) -> CellColumns | None:
    """The columns of an Arrow schema, by its types and by the features that Hugging Face notes; None without images."""
    from pyarrow import types

    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        features = {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        features = {}
    images = [field.name for field in schema if _is_image(field, features.get(field.name))]
    if not images:
        return None
    classes = {
        name: [valid_unicode(str(one)) for one in feature["names"]]
        for name, feature in features.items()
        if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list) and name in schema.names
    }
    label = _LABEL if _LABEL in schema.names else next(iter(classes), _LABEL)
    image = _PLAIN_COLUMNS[0] if _PLAIN_COLUMNS[0] in images else images[0]
    leaf = f"{image}.bytes" if types.is_struct(schema.field(image).type) else image
    return CellColumns(image, leaf, classes, label)


def _is_image(field: Any, feature: Mapping[str, Any] | None) -> bool:
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    if feature is not None and feature.get("_type") != "Image":
        return False
    if types.is_struct(field.type):
        index = field.type.get_field_index("bytes")
        return index >= 0 and is_bytes(field.type.field(index).type)
    return is_bytes(field.type) and (feature is not None or field.name in _PLAIN_COLUMNS)


def scan_cells(file: Path, found: FoundItem, *, label: str | None = None) -> Iterator[FoundItem]:
    """Every image cell of the file `found` in order; damage is one item. Usual labels: the first column of classes."""
    pyarrow, number, shard = import_pyarrow(_PURPOSE), 0, _SHARD.fullmatch(file.name)
    split = {} if shard is None or shard[1] == "data" else {"split": shard[1]}
    names: dict[str, int] = {}
    try:
        with _open(file) as (schema, batches):
            columns = find_columns(schema)
            if columns is None:
                raise ValueError("it has no column of images any more")
            if label is not None and label not in schema.names:
                found_names = ", ".join(map(printable_path, schema.names))
                raise InputError(f"expected a column {label} of labels; found {found_names}", at=file)
            check_labels(schema, label or columns.label, at=file)
            table = TableColumns(columns.image, label or columns.label)
            end = len(_SPOOL_START)
            for batch in batches:
                cells, paths = _split_images(batch, columns.image)
                starts, lengths = _measure_cells(cells)
                starts += end
                end += int(lengths.sum())
                valid = cells.is_valid()
                for at, values in enumerate(batch_rows(_describe_cells(batch, columns, paths))):
                    number += 1
                    row = make_row(f"row {number}", values, table, at=file)
                    name = safe_name(row.path) if row.path else f"{number:07}.{_find_suffix(cells[at])}"
                    metadata = {**split, **(row.metadata or {})}
                    item = replace(
                        row.at(f"{found.path}/{unique_name(name, names)}"),
                        size_bytes=int(lengths[at]),
                        mtime_ns=found.mtime_ns,
                        archive=found.path,
                        starts_at=int(starts[at]),
                        label=row.label or None,
                        metadata=metadata or None,
                    )
                    if row.problem is None and not valid[at].as_py():
                        item = item.with_problem("empty-file", f"row {number} has no bytes of an image")
                    yield item
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        yield replace(found, label=None).with_problem("corrupt-archive", f"after {number} rows: {error}")


def unpack_cells(file: Path) -> Iterator[bytes]:
    """The bytes of all cells of a Parquet file, at the offsets that `scan_cells` gives."""
    pyarrow = import_pyarrow(_PURPOSE)
    yield _SPOOL_START
    try:
        with _open(file) as (schema, batches):
            if (columns := find_columns(schema)) is not None:
                for batch in batches:
                    for cell in _split_images(batch, columns.image)[0]:
                        yield cell.as_py() or b""
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DamagedError(str(error)) from error


@contextmanager
def _open(file: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema of a file, and its batches of rows."""
    parquet = import_pyarrow(_PURPOSE).parquet
    schema = parquet.read_schema(file)
    images = find_columns(schema)
    # Of repeated images the dictionary is read: a small file may stand for any number of bytes.
    with parquet.ParquetFile(file, read_dictionary=[] if images is None else [images.leaf]) as opened:
        yield schema, read_batches(opened, columns=None)


def _split_images(batch: Any, name: str) -> tuple[Any, Any]:
    """The bytes of a batch's images, and their paths; None without paths."""
    from pyarrow import types

    column = batch.column(name)
    if not types.is_struct(column.type):
        return column, None
    children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    return children["bytes"], children.get("path")


def _measure_cells(cells: Any) -> tuple[Ids, Ids]:
    """(n,) int64 starts, from the first cell, and lengths in bytes of the cells of a batch."""
    from pyarrow import compute, types

    if types.is_dictionary(cells.type):
        counted = compute.binary_length(cells.dictionary).take(cells.indices)
    else:
        counted = compute.binary_length(cells)
    lengths = counted.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.cumsum(lengths) - lengths, lengths


def _describe_cells(batch: Any, columns: CellColumns, paths: Any) -> Any:
    """The batch with paths in place of images, the names of classes in place of numbers, and no other bytes."""
    import pyarrow
    from pyarrow import types

    texts = pyarrow.nulls(len(batch), pyarrow.string())
    described = {columns.image: texts if paths is None or not types.is_string(paths.type) else paths}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in described or _is_image(field, None) or types.is_binary(field.type):
            continue
        if (names := columns.classes.get(field.name)) is not None and types.is_integer(field.type):
            known = range(len(names))
            column = pyarrow.array([names[n] if n in known else None for n in column.to_pylist()], pyarrow.string())
        described[field.name] = column
    return pyarrow.RecordBatch.from_pydict(described)


def _find_suffix(cell: Any) -> str:
    """A file suffix for the bytes of a cell, by their content."""
    from pyarrow import types

    value = cell.value if types.is_dictionary(cell.type) else cell
    start = b"" if not cell.is_valid else value.as_buffer()[:FIRST_BYTES].to_pybytes()
    return suffix_of(start)
