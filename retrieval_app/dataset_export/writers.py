"""Writers of data sets: image folder, Parquet, COCO and WebDataset, each into a new folder."""

import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from PIL import Image, UnidentifiedImageError

from index.catalog.rows import SPLIT, CatalogRow
from index.durable import link_file
from index.errors import ImageError
from index.images.decode import FIRST_BYTES, find_format
from index.images.image_files import IMAGE_SUFFIXES
from index.markers import EXPORT_CARD, EXPORT_MARK
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from retrieval_app.dataset_export.rows import BOOL, FLOAT, INT, LABEL, TEXT, TEXTS, RowPlan
from retrieval_app.dataset_export.safe_names import SafeNames

UNLABELLED = "unlabelled"
_SHARD_BYTES, _GROUP_BYTES, _GROUP_ROWS, _METADATA_ROWS = 500 << 20, 64 << 20, 100, 10_000
_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif"}


class SplitWriter(ABC):
    """Writes the images of one split.

    Attributes:
        links: whether images stay files, which can be hard links.
        card: pattern of the files of a split, for `datasets.load_dataset`; empty where README.md is not needed.
        without: the name where there are no splits.
    """

    links: ClassVar[bool] = False
    card: ClassVar[str] = ""
    without: ClassVar[str] = "train"

    def __init__(self, folder: Path, plan: RowPlan, split: str | None, name: str) -> None:
        self.folder, self.plan, self.split, self.name, self.files = folder, plan, split, name, ExitStack()

    @abstractmethod
    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        """Write one image with its columns; whether it became a hard link.

        Raises:
            ImageError: it cannot be written in this way.
        """

    def finish(self) -> None:
        """Write what comes at the end, and close the files."""
        self.close()

    def close(self) -> None:
        """Close open files, also where some cannot be written any more."""
        self.files.close()

    def open_parquet(self, path: Path, schema: Any) -> Any:
        """A Parquet file to write, whose texts have dictionaries and whose images have none."""
        texts = [name for name, kind in self.plan.columns.items() if kind == TEXT]
        writer = import_pyarrow("writing Parquet").parquet.ParquetWriter(path, schema, use_dictionary=texts)
        return self.files.enter_context(writer)


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


class ImageFolderWriter(SplitWriter):
    """Folders of labels beside `metadata.parquet`.

    `load_dataset` guesses the types of other tables. In JSON lines labels like `2024-01-01` become times, and it fails
    where a column has no value in one split. In CSV labels like `1` and `None` become numbers and missing values.
    """

    links: ClassVar[bool] = True
    card: ClassVar[str] = "{}/**"

    def __init__(self, folder: Path, plan: RowPlan, split: str | None, name: str) -> None:
        super().__init__(folder if split is None else folder / name, plan, split, name)
        self.folder.mkdir(exist_ok=True)
        schema = make_schema(plan, ("file_name", import_pyarrow("writing metadata").string()))
        self._table, self._rows = self.open_parquet(self.folder / "metadata.parquet", schema), list[dict[str, Any]]()
        safe = SafeNames("metadata.parquet", EXPORT_MARK, EXPORT_CARD, UNLABELLED)
        self._names: dict[str | None, str] = {label: safe.take(label) for label in plan.labels}
        self._names[None] = UNLABELLED
        self._files: dict[str, _Files] = {}

    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        label = self._names[row.label]
        if label not in self._files:
            self._files[label] = _Files(self.folder / label)
        name, is_link = self._files[label].write(row, content)
        self._rows.append({"file_name": f"{label}/{name}", **values})
        if len(self._rows) == _METADATA_ROWS:
            write_rows(self._table, self._rows)
        return is_link

    def finish(self) -> None:
        write_rows(self._table, self._rows)
        super().finish()


class ParquetWriter(SplitWriter):
    """Shards `data/SPLIT-00000-of-00001.parquet` with a column `image` of `{bytes, path}`, as of Hugging Face."""

    card: ClassVar[str] = "data/{}-*"

    def __init__(self, folder: Path, plan: RowPlan, split: str | None, name: str) -> None:
        super().__init__(folder / "data", plan, split, name)
        self.folder.mkdir(exist_ok=True)
        pyarrow = import_pyarrow("writing Parquet")
        image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        self._schema = make_schema(plan, ("image", image), {"image": {"_type": "Image"}})
        groups = -(-plan.counts[split] // _GROUP_ROWS)
        self._shards = max(1, min(groups, -(-plan.sizes[split] // _SHARD_BYTES)))
        self._rows, self._bytes, self._written, self._shard = list[dict[str, Any]](), 0, 0, -1
        self._table: Any = None

    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        assert isinstance(content, bytes)
        path = PurePosixPath(valid_text(row.path)).name
        self._rows.append({"image": {"bytes": content, "path": path}, **values})
        self._bytes += len(content)
        if len(self._rows) == _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()
        return False

    def _flush(self) -> None:
        """Write the waiting rows as a row group, to the shard that their number asks for."""
        while self._shard < min(self._shards - 1, self._written * self._shards // self.plan.counts[self.split]):
            self._next_shard()
        self._written, self._bytes = self._written + len(self._rows), 0
        write_rows(self._table, self._rows)

    def _next_shard(self) -> None:
        if self._table is not None:
            self._table.close()
        self._shard += 1
        name = f"{self.name}-{self._shard:05}-of-{self._shards:05}.parquet"
        self._table = self.open_parquet(self.folder / name, self._schema)

    def finish(self) -> None:
        self._flush()
        while self._shard < self._shards - 1:  # images were left out
            self._next_shard()
        super().finish()


class WebDatasetWriter(SplitWriter):
    """Shards `SPLIT-000000.tar` of images, each with a JSON file of its columns beside it."""

    def __init__(self, folder: Path, plan: RowPlan, split: str | None, name: str) -> None:
        super().__init__(folder, plan, split, name)
        self._tar: tarfile.TarFile | None = None
        self._shards = 0

    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        assert isinstance(content, bytes)
        if self._tar is None or self._tar.offset >= _SHARD_BYTES:
            self.files.close()
            self._tar = tarfile.open(self.folder / f"{self.name}-{self._shards:06}.tar", "w")  # noqa: SIM115
            self._shards += 1
            self.files.callback(self._tar.close)
        columns = json.dumps(values, ensure_ascii=False).encode()
        for suffix, data in ((find_suffix(row, content), content), (".json", columns)):
            member = tarfile.TarInfo(f"{row.id:08}{suffix}")
            member.size = len(data)
            self._tar.addfile(member, io.BytesIO(data))
        return False


class CocoWriter(SplitWriter):
    """Images in a folder, and `annotations/instances_SPLIT.json` with a box of the whole image for each label."""

    links: ClassVar[bool] = True
    without: ClassVar[str] = "images"

    def __init__(self, folder: Path, plan: RowPlan, split: str | None, name: str) -> None:
        super().__init__(folder, plan, split, name)
        self._files, self._boxes = _Files(folder / name), list[tuple[int, int, int, int]]()
        self._categories = {label: number for number, label in enumerate(plan.labels, start=1)}
        (folder / "annotations").mkdir(exist_ok=True)
        text = (folder / "annotations" / f"instances_{name}.json").open("w", encoding="utf-8")
        self._text = self.files.enter_context(text)
        self._text.write('{"images": [')
        self._separator = "\n"

    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        try:
            with Image.open(content if isinstance(content, Path) else io.BytesIO(content)) as opened:
                width, height = opened.size
        except (UnidentifiedImageError, OSError) as error:
            detail = f"COCO needs its size, which is unknown: {error}"
            raise ImageError(path=printable_path(row.path), reason="unreadable", detail=detail) from error
        name, is_link = self._files.write(row, content)
        others = {column: value for column, value in values.items() if column != LABEL and value is not None}
        self._write({"id": row.id, "file_name": name, "width": width, "height": height, **others})
        if row.label is not None:
            self._boxes.append((row.id, self._categories[row.label], width, height))
        return is_link

    def finish(self) -> None:
        self._text.write('\n], "annotations": [')
        self._separator = "\n"
        for number, (image, category, width, height) in enumerate(self._boxes, start=1):
            self._write(
                {
                    "id": number,
                    "image_id": image,
                    "category_id": category,
                    "bbox": [0, 0, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": [],
                }
            )
        categories = [{"id": number, "name": label} for label, number in self._categories.items()]
        self._text.write(f'\n], "categories": {json.dumps(categories, ensure_ascii=False)}}}\n')
        super().finish()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._text.write(self._separator + json.dumps(entry, ensure_ascii=False))
        self._separator = ",\n"


WRITERS: Mapping[str, type[SplitWriter]] = {
    "imagefolder": ImageFolderWriter,
    "parquet": ParquetWriter,
    "coco": CocoWriter,
    "webdataset": WebDatasetWriter,
}


class DatasetWriter:
    """Writes a data set by one writer for each split, and README.md where `datasets.load_dataset` needs it."""

    def __init__(self, kind: str, folder: Path, plan: RowPlan) -> None:
        self._kind, self._folder, self._plan = WRITERS[kind], folder, plan
        self.links = self._kind.links
        names = SafeNames(splits=True)
        self._names = {split: self._kind.without if split is None else names.take(split) for split in plan.counts}
        self._writers: dict[str | None, SplitWriter] = {}
        self._open = ExitStack()

    def write(self, row: CatalogRow, values: Mapping[str, Any], content: bytes | Path) -> bool:
        """As `SplitWriter.write`."""
        split = values.get(SPLIT)
        if split not in self._writers:
            writer = self._kind(self._folder, self._plan, split, self._names[split])
            self._writers[split] = writer
            self._open.callback(writer.close)
        return self._writers[split].write(row, values, content)

    def finish(self) -> None:
        for writer in self._writers.values():
            writer.finish()
        if not self._kind.card:
            return
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in self._writers:
            whole = split is None and self._kind is ImageFolderWriter
            pattern = "**" if whole else self._kind.card.format(self._names[split])
            lines += [f"  - split: {_quote(self._names[split])}", f"    path: {_quote(pattern)}"]
        if self._kind is ParquetWriter:
            lines += ["dataset_info:", "  features:", *_list_features(self._plan)]
        (self._folder / EXPORT_CARD).write_text("\n".join([*lines, "---", ""]), encoding="utf-8")

    def close(self) -> None:
        self._open.close()


def _list_features(plan: RowPlan) -> Iterator[str]:
    """Lines of the card by which `datasets` reads labels as classes; in Parquet they are texts, for other programs."""
    yield from ("  - name: image", "    dtype: image")
    for name, kind in plan.columns.items():
        yield f"  - name: {_quote(name)}"
        if name == LABEL and plan.labels:
            yield from ("    dtype:", "      class_label:", "        names:")
            yield from (f"          '{number}': {_quote(label)}" for number, label in enumerate(plan.labels))
        else:
            yield f"    list: {TEXT}" if kind == TEXTS else f"    dtype: {kind}"


def _quote(text: str) -> str:
    """A text in YAML, which takes JSON's, but reads what JSON writes for a character beyond 16 bits as two."""
    quoted = (one if ord(one) > 0xFFFF else json.dumps(one)[1:-1] for one in text)
    return f'"{"".join(quoted)}"'


def make_schema(plan: RowPlan, first: tuple[str, Any], features: Mapping[str, Any] | None = None) -> Any:
    """The Arrow schema of a first column and all others; with the `features` of the first also those of the others."""
    pyarrow = import_pyarrow("writing Parquet")
    types = {
        TEXT: pyarrow.string(),
        BOOL: pyarrow.bool_(),
        INT: pyarrow.int64(),
        FLOAT: pyarrow.float64(),
        TEXTS: pyarrow.list_(pyarrow.string()),
    }
    schema = pyarrow.schema([first, *((name, types[kind]) for name, kind in plan.columns.items())])
    if features is None:
        return schema
    values: dict[str, Any] = {name: {"dtype": kind, "_type": "Value"} for name, kind in plan.columns.items()}
    values |= {
        name: {"feature": {"dtype": TEXT, "_type": "Value"}, "_type": "List"}
        for name, kind in plan.columns.items()
        if kind == TEXTS
    }
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": {**features, **values}}})})


def write_rows(file: Any, rows: list[dict[str, Any]]) -> None:
    """Write rows to an open Parquet file as one row group, and forget them."""
    if rows:
        table = import_pyarrow("writing Parquet").Table.from_pylist(rows, schema=file.schema)
        file.write_table(table, row_group_size=len(rows))
        rows.clear()


def find_suffix(row: CatalogRow, content: bytes | Path) -> str:
    """The suffix of an image's name, or that of its content where the name has none of an image."""
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
