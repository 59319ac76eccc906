"""Writers of data sets: image folder, Parquet, COCO and WebDataset, each into a new folder."""

from __future__ import annotations

import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar

from PIL import Image, UnidentifiedImageError

from index.catalog.rows import CatalogRow
from index.durable import link_file
from index.errors import ImageError
from index.images.decode import FIRST_BYTES, find_format
from index.images.image_files import IMAGE_SUFFIXES
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from retrieval_app.dataset_export.rows import BOOL, FLOAT, INT, LABEL, TEXT, TEXTS, ImageRow, RowPlan
from retrieval_app.dataset_export.safe_names import SafeNames

UNLABELLED, MANIFEST, CARD = "unlabelled", "manifest.json", "README.md"
_SHARD_BYTES, _GROUP_BYTES, _GROUP_ROWS, _METADATA_ROWS = 500 << 20, 64 << 20, 100, 10_000
_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif"}


class DatasetWriter(ABC):
    """Writes images and their columns into a folder.

    Attributes:
        links: whether images stay files, which can be hard links.
    """

    links: ClassVar[bool] = False

    def __init__(self, folder: Path, plan: RowPlan) -> None:
        self.folder, self.plan = folder, plan
        self.splits, self.files = SafeNames(splits=True), ExitStack()

    def split_name(self, split: str | None, without: str = "train") -> str:
        """The name of a split in paths; `without` where there are no splits."""
        return without if split is None else self.splits.name(split)

    @abstractmethod
    def write(self, row: CatalogRow, image: ImageRow, content: bytes | Path) -> bool:
        """Write one image; whether it became a hard link.

        Raises:
            ImageError: it cannot be written in this way.
        """

    def finish(self) -> Mapping[str, str]:
        """Complete the data set; the folders of labels whose own name is none."""
        return {}

    def close(self) -> None:
        """Close open files, also where some cannot be written any more."""
        self.files.close()

    def open_parquet(self, path: Path, schema: Any) -> Any:
        """A Parquet file to write, whose texts have dictionaries and whose images have none."""
        texts = [name for name, kind in self.plan.columns.items() if kind == TEXT]
        writer = import_pyarrow("writing Parquet").parquet.ParquetWriter(path, schema, use_dictionary=texts)
        return self.files.enter_context(writer)

    def write_card(self, paths: Mapping[str, str]) -> None:
        """Write README.md, by which `datasets.load_dataset` finds the splits; `paths` has a pattern by split."""
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split, pattern in paths.items():
            lines += [f"  - split: {split}", f"    path: {json.dumps(pattern)}"]
        (self.folder / CARD).write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


class _Files:
    """Places images as files with unique names in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._names = folder, SafeNames()

    def write(self, row: CatalogRow, content: bytes | Path) -> tuple[str, bool]:
        """The name of the new file, and whether it is a hard link."""
        name = self._names.take(
            PurePosixPath(valid_text(row.path)).stem, suffix=find_suffix(row, content), key=str(row.id)
        )
        target = self._folder / name
        if isinstance(content, Path):
            link_file(content, target)
            return name, content.samefile(target)
        target.write_bytes(content)
        return name, False


class ImageFolderWriter(DatasetWriter):
    """Folders of labels, with `metadata.parquet` in each split's folder.

    In JSON lines a column without values in one split would be of another type there, and `load_dataset` fails.
    """

    links: ClassVar[bool] = True

    def __init__(self, folder: Path, plan: RowPlan) -> None:
        super().__init__(folder, plan)
        self._schema = make_schema(plan, ("file_name", import_pyarrow("writing metadata").string()))
        self._tables: dict[str | None, Any] = {}
        self._rows: dict[str | None, list[dict[str, Any]]] = {}
        self._labels: dict[str | None, SafeNames] = {}
        self._files: dict[str, _Files] = {}
        self._renamed: dict[str, str] = {}

    def write(self, row: CatalogRow, image: ImageRow, content: bytes | Path) -> bool:
        start = "" if image.split is None else f"{self.split_name(image.split)}/"
        if image.split not in self._tables:
            (self.folder / start).mkdir(exist_ok=True)
            self._tables[image.split] = self.open_parquet(self.folder / start / "metadata.parquet", self._schema)
            self._rows[image.split] = []
            self._labels[image.split] = SafeNames("metadata.parquet", MANIFEST, CARD, UNLABELLED)
        label = UNLABELLED if row.label is None else self._labels[image.split].name(row.label)
        if row.label is not None and label != row.label:
            self._renamed[row.label] = label
        files = self._files.get(start + label)
        if files is None:
            files = self._files[start + label] = _Files(self.folder / start / label)
        name, is_link = files.write(row, content)
        rows = self._rows[image.split]
        rows.append({"file_name": f"{label}/{name}", **image.values})
        if len(rows) == _METADATA_ROWS:
            write_rows(self._tables[image.split], rows)
        return is_link

    def finish(self) -> Mapping[str, str]:
        for split, table in self._tables.items():
            write_rows(table, self._rows[split])
        names = {split: self.split_name(split) for split in self._tables}
        self.write_card({name: "**" if split is None else f"{name}/**" for split, name in names.items()})
        return dict(sorted(self._renamed.items()))


class ParquetWriter(DatasetWriter):
    """Shards `data/SPLIT-00000-of-00001.parquet` with a column `image` of `{bytes, path}`, as of Hugging Face."""

    def __init__(self, folder: Path, plan: RowPlan) -> None:
        super().__init__(folder, plan)
        pyarrow = import_pyarrow("writing Parquet")
        image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        self._schema = make_schema(plan, ("image", image), {"image": {"_type": "Image"}})
        self._rows: dict[str | None, list[dict[str, Any]]] = {}
        self._bytes: dict[str | None, int] = {}
        self._written: dict[str | None, int] = {}
        self._open: dict[tuple[str | None, int], Any] = {}
        (folder / "data").mkdir()

    def write(self, row: CatalogRow, image: ImageRow, content: bytes | Path) -> bool:
        assert isinstance(content, bytes)
        rows, name = self._rows.setdefault(image.split, []), PurePosixPath(valid_text(row.path)).name
        rows.append({"image": {"bytes": content, "path": name}, **image.values})
        self._bytes[image.split] = self._bytes.get(image.split, 0) + len(content)
        if len(rows) == _GROUP_ROWS or self._bytes[image.split] >= _GROUP_BYTES:
            self._flush(image.split)
        return False

    def _flush(self, split: str | None) -> None:
        """Write the waiting rows of a split as a row group."""
        rows = self._rows.pop(split, [])
        shards = self._count_shards(split)
        written = self._written.get(split, 0)
        shard = min(shards - 1, written * shards // max(1, self.plan.counts[split]))
        if (split, shard) not in self._open:
            for key in [key for key in self._open if key[0] == split]:
                self._open.pop(key).close()
            name = f"{self.split_name(split)}-{shard:05}-of-{shards:05}.parquet"
            self._open[split, shard] = self.open_parquet(self.folder / "data" / name, self._schema)
        self._written[split], self._bytes[split] = written + len(rows), 0
        write_rows(self._open[split, shard], rows)

    def _count_shards(self, split: str | None) -> int:
        by_bytes = -(-self.plan.sizes[split] // _SHARD_BYTES)
        return max(1, min(by_bytes, -(-self.plan.counts[split] // _GROUP_ROWS)))

    def finish(self) -> Mapping[str, str]:
        for split in self.plan.counts:
            self._flush(split)
        self.write_card({
            name: f"data/{name}-*" for name in (self.split_name(split) for split in self.plan.counts)
        })  # fmt: skip
        return {}


class WebDatasetWriter(DatasetWriter):
    """Shards `SPLIT-000000.tar` of images, each with a JSON file of its columns beside it."""

    def __init__(self, folder: Path, plan: RowPlan) -> None:
        super().__init__(folder, plan)
        self._open: dict[str | None, tarfile.TarFile] = {}
        self._shards: dict[str | None, int] = {}

    def write(self, row: CatalogRow, image: ImageRow, content: bytes | Path) -> bool:
        assert isinstance(content, bytes)
        shard = self._open.get(image.split)
        if shard is None or shard.offset >= _SHARD_BYTES:
            if shard is not None:
                shard.close()
            number = self._shards[image.split] = self._shards.get(image.split, -1) + 1
            name = f"{self.split_name(image.split)}-{number:06}.tar"
            shard = self._open[image.split] = tarfile.open(self.folder / name, "w")  # noqa: SIM115
            self.files.callback(shard.close)
        values = json.dumps(image.values, ensure_ascii=False).encode()
        for suffix, data in ((find_suffix(row, content), content), (".json", values)):
            member = tarfile.TarInfo(f"{row.id:08}{suffix}")
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
        return False


class CocoWriter(DatasetWriter):
    """Images in a folder of each split, and `annotations/instances_SPLIT.json` with a box of the whole image each."""

    links: ClassVar[bool] = True
    _without: ClassVar[str] = "images"

    def __init__(self, folder: Path, plan: RowPlan) -> None:
        super().__init__(folder, plan)
        self._texts: dict[str | None, IO[str]] = {}
        self._files: dict[str | None, _Files] = {}
        self._boxes: dict[str | None, list[tuple[int, int, int, int]]] = {}
        self._categories: dict[str, int] = {}
        (folder / "annotations").mkdir()

    def write(self, row: CatalogRow, image: ImageRow, content: bytes | Path) -> bool:
        try:
            with Image.open(content if isinstance(content, Path) else io.BytesIO(content)) as opened:
                width, height = opened.size
        except (UnidentifiedImageError, OSError) as error:
            name = printable_path(row.path)
            detail = f"COCO needs its size, which is unknown: {error}"
            raise ImageError(path=name, reason="unreadable", detail=detail) from error
        split = image.split
        is_first = split not in self._texts
        if is_first:
            place = self.split_name(split, self._without)
            self._files[split], self._boxes[split] = _Files(self.folder / place), []
            name = f"instances_{place}.json"
            text = (self.folder / "annotations" / name).open("w", encoding="utf-8")
            self._texts[split] = self.files.enter_context(text)
            self._texts[split].write('{"images": [\n')
        name, is_link = self._files[split].write(row, content)
        others = {column: value for column, value in image.values.items() if column != LABEL and value is not None}
        entry = {"id": row.id, "file_name": name, "width": width, "height": height, **others}
        self._texts[split].write(("" if is_first else ",\n") + json.dumps(entry, ensure_ascii=False))
        if row.label is not None:
            category = self._categories.setdefault(row.label, len(self._categories) + 1)
            self._boxes[split].append((row.id, category, width, height))
        return is_link

    def finish(self) -> Mapping[str, str]:
        categories = [{"id": number, "name": label, "supercategory": ""} for label, number in self._categories.items()]
        for split, text in self._texts.items():
            text.write('\n], "annotations": [')
            for number, (image, category, width, height) in enumerate(self._boxes[split], start=1):
                entry = {
                    "id": number, "image_id": image, "category_id": category, "bbox": [0, 0, width, height],
                    "area": width * height, "iscrowd": 0, "segmentation": [],
                }  # fmt: skip
                text.write((",\n" if number > 1 else "\n") + json.dumps(entry))
            text.write(f'\n], "categories": {json.dumps(categories, ensure_ascii=False)}}}\n')
        return {}


WRITERS: Mapping[str, type[DatasetWriter]] = {
    "imagefolder": ImageFolderWriter,
    "parquet": ParquetWriter,
    "coco": CocoWriter,
    "webdataset": WebDatasetWriter,
}


def make_schema(plan: RowPlan, first: tuple[str, Any], features: Mapping[str, Any] | None = None) -> Any:
    """The Arrow schema of a first column and all others; with the `features` of the first also those of the others."""
    pyarrow = import_pyarrow("writing Parquet")
    types = {
        TEXT: pyarrow.string(), BOOL: pyarrow.bool_(), INT: pyarrow.int64(), FLOAT: pyarrow.float64(),
        TEXTS: pyarrow.list_(pyarrow.string()),
    }  # fmt: skip
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
