"""Image folders of a data set, one for each split, with a table of their columns."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from index.catalog.rows import SPLIT, CatalogRow
from index.durable import link_file
from index.images.decode import FIRST_BYTES, suffix_of
from index.images.image_files import IMAGE_SUFFIXES
from index.markers import EXPORT_CARD, EXPORT_MARK
from index.sources.table_rows import import_pyarrow
from index.text import valid_text
from retrieval_app.dataset_export.rows import BOOL, FLOAT, INT, TEXT, TEXTS, RowPlan
from retrieval_app.dataset_export.safe_names import SafeNames

UNLABELLED = "unlabelled"
_METADATA_ROWS = 10_000
Write = Callable[[CatalogRow, Mapping[str, Any], bytes | Path], bool]
"""Writes an image with its columns; whether it became a hard link."""


@contextmanager
def write_image_folder(folder: Path, plan: RowPlan, split: str | None, name: str) -> Iterator[Write]:
    """Folders of labels beside `metadata.parquet`.

    `load_dataset` guesses the types of other tables. In JSON lines labels like `2024-01-01` become times, and it fails
    where a column has no value in one split. In CSV labels like `1` and `None` become numbers and missing values.
    """
    folder = folder if split is None else folder / name
    folder.mkdir(exist_ok=True)
    safe = SafeNames("metadata.parquet", EXPORT_MARK, EXPORT_CARD, UNLABELLED)
    folders: dict[str | None, str] = {None: UNLABELLED, **{label: safe.take(label) for label in plan.labels}}
    files, rows = dict[str, _Files](), list[dict[str, Any]]()
    with _open_table(folder / "metadata.parquet", plan) as table:

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            label = folders[row.label]
            if label not in files:
                files[label] = _Files(folder / label)
            file_name, is_link = files[label].write(row, content)
            rows.append({"file_name": f"{label}/{file_name}", **values})
            if len(rows) == _METADATA_ROWS:
                _write_rows(table, rows)
            return is_link

        yield write
        _write_rows(table, rows)


@contextmanager
def write_dataset(folder: Path, plan: RowPlan) -> Iterator[Write]:
    """Write an image folder for each split, and README.md, which names them for `datasets.load_dataset`."""
    names, writers = SafeNames(splits=True), dict[str | None, Write]()
    safe = {split: "train" if split is None else names.take(split) for split in plan.counts}
    with ExitStack() as stack:

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            split = values.get(SPLIT)
            if split not in writers:
                writers[split] = stack.enter_context(write_image_folder(folder, plan, split, safe[split]))
            return writers[split](row, values, content)

        yield write
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in writers:
        pattern = "**" if split is None else f"{safe[split]}/**"
        lines += [f"  - split: {_quote(safe[split])}", f"    path: {_quote(pattern)}"]
    (folder / EXPORT_CARD).write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def _quote(text: str) -> str:
    """A text in YAML, which takes JSON's, but reads what JSON writes for a character beyond 16 bits as two."""
    quoted = (one if ord(one) > 0xFFFF else json.dumps(one)[1:-1] for one in text)
    return f'"{"".join(quoted)}"'


def _open_table(path: Path, plan: RowPlan) -> AbstractContextManager[Any]:
    """A Parquet file to write, of `file_name` and the columns of the plan; texts have dictionaries."""
    pyarrow = import_pyarrow("writing Parquet")
    types = {
        TEXT: pyarrow.string(),
        BOOL: pyarrow.bool_(),
        INT: pyarrow.int64(),
        FLOAT: pyarrow.float64(),
        TEXTS: pyarrow.list_(pyarrow.string()),
    }
    columns = [("file_name", pyarrow.string()), *((column.name, types[column.kind]) for column in plan.columns)]
    texts = [column.name for column in plan.columns if column.kind == TEXT]
    opened: AbstractContextManager[Any] = pyarrow.parquet.ParquetWriter(
        path, pyarrow.schema(columns), use_dictionary=texts
    )
    return opened


def _write_rows(file: Any, rows: list[dict[str, Any]]) -> None:
    """Write rows to an open Parquet file as one row group, and forget them."""
    if rows:
        table = import_pyarrow("writing Parquet").Table.from_pylist(rows, schema=file.schema)
        file.write_table(table, row_group_size=len(rows))
        rows.clear()


class _Files:
    """Places images as files with unique names in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._names = folder, SafeNames()

    def write(self, row: CatalogRow, content: bytes | Path) -> tuple[str, bool]:
        """The name of the new file, and whether it is a hard link."""
        stem = PurePosixPath(valid_text(row.path)).stem
        name = self._names.take(stem, suffix=find_suffix(row, content), key=str(row.id))
        target = self._folder / name
        if isinstance(content, Path):
            link_file(content, target)
            return name, content.samefile(target)
        target.write_bytes(content)
        return name, False


def find_suffix(row: CatalogRow, content: bytes | Path) -> str:
    """The suffix of an image's name, or by its content where the name has no image suffix."""
    own = PurePosixPath(row.path).suffix.lower()
    if own in IMAGE_SUFFIXES:
        return own
    if isinstance(content, Path):
        with content.open("rb") as file:
            content = file.read(FIRST_BYTES)
    return f".{suffix_of(content)}"
