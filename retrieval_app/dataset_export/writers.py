"""Writers of data sets: image folder, Parquet and WebDataset, each a context manager for one split."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from index.catalog.rows import SPLIT, CatalogRow
from index.durable import link_file
from index.images.decode import FIRST_BYTES, find_format
from index.images.image_files import IMAGE_SUFFIXES
from index.markers import EXPORT_CARD, EXPORT_MARK
from index.sources.table_rows import import_pyarrow
from index.text import valid_text
from retrieval_app.dataset_export.rows import BOOL, FLOAT, INT, LABEL, TEXT, TEXTS, RowPlan
from retrieval_app.dataset_export.safe_names import SafeNames

UNLABELLED = "unlabelled"
_SHARD_BYTES, _GROUP_BYTES, _GROUP_ROWS, _METADATA_ROWS = 500 << 20, 64 << 20, 100, 10_000
_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif"}
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
    with open_parquet(folder / "metadata.parquet", plan, "file_name") as table:

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            label = folders[row.label]
            if label not in files:
                files[label] = _Files(folder / label)
            file_name, is_link = files[label].write(row, content)
            rows.append({"file_name": f"{label}/{file_name}", **values})
            if len(rows) == _METADATA_ROWS:
                write_rows(table, rows)
            return is_link

        yield write
        write_rows(table, rows)


@contextmanager
def write_parquet(folder: Path, plan: RowPlan, split: str | None, name: str) -> Iterator[Write]:
    """Shards `data/SPLIT-00000-of-00001.parquet` with a column `image` of `{bytes, path}`, as of Hugging Face."""
    (folder / "data").mkdir(exist_ok=True)
    count = plan.counts[split]
    shards = max(1, min(-(-count // _GROUP_ROWS), -(-plan.sizes[split] // _SHARD_BYTES)))
    rows, tables, written, size = list[dict[str, Any]](), list[Any](), 0, 0
    with ExitStack() as stack:

        def open_shards(most: int) -> None:
            while len(tables) < most:
                stack.close()
                path = folder / "data" / f"{name}-{len(tables):05}-of-{shards:05}.parquet"
                tables.append(stack.enter_context(open_parquet(path, plan, "image")))

        def flush() -> None:
            """Write the waiting rows as a row group, to the shard that their number asks for."""
            nonlocal written, size
            open_shards(min(shards, written * shards // count + 1))
            written, size = written + len(rows), 0
            write_rows(tables[-1], rows)

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            nonlocal size
            assert isinstance(content, bytes)
            path = PurePosixPath(valid_text(row.path)).name
            rows.append({"image": {"bytes": content, "path": path}, **values})
            size += len(content)
            if len(rows) == _GROUP_ROWS or size >= _GROUP_BYTES:
                flush()
            return False

        yield write
        flush()
        open_shards(shards)  # where images were left out


@contextmanager
def write_webdataset(folder: Path, plan: RowPlan, split: str | None, name: str) -> Iterator[Write]:
    """Shards `SPLIT-000000.tar` of images, each with a JSON file of its columns beside it."""
    shards = list[tarfile.TarFile]()
    with ExitStack() as stack:

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            assert isinstance(content, bytes)
            if not shards or shards[-1].offset >= _SHARD_BYTES:
                stack.close()
                shards.append(stack.enter_context(tarfile.open(folder / f"{name}-{len(shards):06}.tar", "w")))
            columns = json.dumps(values, ensure_ascii=False).encode()
            for suffix, data in ((find_suffix(row, content), content), (".json", columns)):
                member = tarfile.TarInfo(f"{row.id:08}{suffix}")
                member.size = len(data)
                shards[-1].addfile(member, io.BytesIO(data))
            return False

        yield write


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of data set, by a writer that takes folder, plan, split and the split's safe name.

    `links`: images stay files, which can be hard links. `card`: pattern of the files of a split in README.md, if any.
    """

    write: Callable[[Path, RowPlan, str | None, str], AbstractContextManager[Write]]
    links: bool = False
    card: str = ""


FORMATS: Mapping[str, Format] = {
    "imagefolder": Format(write_image_folder, links=True, card="{}/**"),
    "parquet": Format(write_parquet, card="data/{}-*"),
    "webdataset": Format(write_webdataset),
}


@contextmanager
def write_dataset(kind: str, folder: Path, plan: RowPlan) -> Iterator[Write]:
    """Write a data set by one writer for each split, and README.md where `datasets.load_dataset` needs it."""
    chosen, names, writers = FORMATS[kind], SafeNames(splits=True), dict[str | None, Write]()
    safe = {split: "train" if split is None else names.take(split) for split in plan.counts}
    with ExitStack() as stack:

        def write(row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
            split = values.get(SPLIT)
            if split not in writers:
                writers[split] = stack.enter_context(chosen.write(folder, plan, split, safe[split]))
            return writers[split](row, values, content)

        yield write
    if not chosen.card:
        return
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in writers:
        pattern = "**" if split is None and kind == "imagefolder" else chosen.card.format(safe[split])
        lines += [f"  - split: {_quote(safe[split])}", f"    path: {_quote(pattern)}"]
    if kind == "parquet":
        lines += ["dataset_info:", "  features:", *_list_features(plan)]
    (folder / EXPORT_CARD).write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def _list_features(plan: RowPlan) -> Iterator[str]:
    """Lines of the card by which `datasets` reads labels as classes; in Parquet they are texts, for other programs."""
    yield from ("  - name: image", "    dtype: image")
    for column in plan.columns:
        yield f"  - name: {_quote(column.name)}"
        if column.name == LABEL and plan.labels:
            yield from ("    dtype:", "      class_label:", "        names:")
            yield from (f"          '{number}': {_quote(label)}" for number, label in enumerate(plan.labels))
        else:
            yield f"    list: {TEXT}" if column.kind == TEXTS else f"    dtype: {column.kind}"


def _quote(text: str) -> str:
    """A text in YAML, which takes JSON's, but reads what JSON writes for a character beyond 16 bits as two."""
    quoted = (one if ord(one) > 0xFFFF else json.dumps(one)[1:-1] for one in text)
    return f'"{"".join(quoted)}"'


def open_parquet(path: Path, plan: RowPlan, first: str) -> AbstractContextManager[Any]:
    """A Parquet file to write, of a column `image` or `file_name` and those of the plan; texts have dictionaries."""
    pyarrow = import_pyarrow("writing Parquet")
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    types = {
        TEXT: pyarrow.string(),
        BOOL: pyarrow.bool_(),
        INT: pyarrow.int64(),
        FLOAT: pyarrow.float64(),
        TEXTS: pyarrow.list_(pyarrow.string()),
    }
    columns = [(column.name, types[column.kind]) for column in plan.columns]
    schema = pyarrow.schema([(first, image if first == "image" else pyarrow.string()), *columns])
    texts = [column.name for column in plan.columns if column.kind == TEXT]
    opened: AbstractContextManager[Any] = pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=texts)
    return opened


def write_rows(file: Any, rows: list[dict[str, Any]]) -> None:
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
            start = file.read(FIRST_BYTES)
    else:
        start = content[:FIRST_BYTES]
    kind = find_format(start) or "bin"
    return _SUFFIXES.get(kind, f".{kind.lower()}")
