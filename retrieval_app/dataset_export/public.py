"""Export of a gallery as a data set: labels as decided, tags and splits as columns, the original bytes."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path
from index.durable import write_durably
from index.errors import ImageError, InputError
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text

if TYPE_CHECKING:
    from index.catalog.rows import CatalogRow
    from index.filters.condition import Condition
    from index.gallery.gallery import Gallery
    from retrieval_app.dataset_export.rows import RowPlan

GROUP, IMAGE = "group", "image"
_READ_AHEAD = 8
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """An exported data set: numbers of images, by label and by split, and of those written as hard links.

    `left_out` has path and reason of each image that could not be read, or is not the indexed one any more.
    """

    out: str
    gallery: str
    version: str
    images: int
    unlabelled: int
    linked: int
    labels: Mapping[str, int]
    splits: Mapping[str, int]
    left_out: tuple[Mapping[str, str], ...] = ()


def export_dataset(
    gallery: str | Path | Gallery,
    out: str | Path,
    *,
    where: str | Condition | None = None,
    split: str | None = None,
    by: str = GROUP,
    seed: int = 0,
    progress: Progress = no_progress,
) -> DatasetReport:
    """Write the members of a gallery as folders of images with metadata.parquet, all or nothing.

    Args:
        out: a folder that does not exist or is empty.
        where: a filter; None: all members.
        split: percentages, as "80/10/10"; None keeps the splits that the images have, if any.
        by: what is never divided: `group` (images of one scene, and near-duplicates) or `image`.
        seed: of the splits.
    """
    if by not in (GROUP, IMAGE):
        raise InputError(f"by: expected {GROUP} or {IMAGE}, got {by!r}")
    from index.filters.parser import parse_filter
    from index.gallery.gallery import Gallery
    from index.markers import EXPORT_MARK
    from retrieval_app.dataset_export.rows import plan_rows

    folder = as_path(out, "out")
    opened = gallery if isinstance(gallery, Gallery) else Gallery.open(as_path(gallery, "gallery"))
    condition = parse_filter(where) if isinstance(where, str) else where
    _check_out(folder, opened)
    plan = plan_rows(opened, condition, split=split, by_group=by == GROUP, seed=seed)
    with _new_folder(folder.resolve()) as unfinished:
        report = _write(opened, condition, plan, unfinished, progress)
        report = replace(report, out=valid_text(str(folder)))
        wanted = {"split": split, "by": by if split else None, "seed": seed if split else None}
        manifest = {"format_version": _FORMAT_VERSION, **asdict(report), **wanted}
        del manifest["out"]
        write_durably(unfinished / EXPORT_MARK, json.dumps(manifest, indent=1).encode())
    return report


def _write(gallery: Gallery, where: Condition | None, plan: RowPlan, folder: Path, progress: Progress) -> DatasetReport:
    from index.catalog.rows import SPLIT
    from index.threads import map_ahead, usable_cores
    from retrieval_app.dataset_export.writers import write_dataset

    def read(row: CatalogRow) -> tuple[CatalogRow, dict[str, Any], bytes | Path | ImageError]:
        return row, plan.describe(row), _read(gallery, row)

    labels, splits, left_out, linked = Counter[str | None](), Counter[str | None](), [], 0
    with gallery.catalog() as catalog, write_dataset(folder, plan) as write:
        rows = catalog.rows(status="indexed", where=where)
        with closing(map_ahead(read, rows, workers=usable_cores(), ahead=_READ_AHEAD)) as found:
            for done, (row, values, content) in enumerate(found, start=1):
                if isinstance(content, ImageError):
                    why = {"reason": content.reason, "detail": content.detail}
                    left_out.append({"path": valid_text(row.path), **why})
                else:
                    linked += write(row, values, content)
                    labels[row.label] += 1
                    splits[values.get(SPLIT)] += 1
                progress(done, plan.images)
    if not labels:
        raise InputError("no image of it can be read, so nothing is exported", at=gallery.path)
    return DatasetReport(
        out=valid_text(str(folder)),
        gallery=valid_text(gallery.name),
        version=gallery.version,
        images=labels.total(),
        unlabelled=labels.pop(None, 0),
        linked=linked,
        labels={label: labels[label] for label in sorted(filter(None, labels))},
        splits={name: count for name, count in splits.items() if name is not None},
        left_out=tuple(left_out),
    )


def _check_out(out: Path, gallery: Gallery) -> None:
    from index.sources.local_source import find_folder_around

    shown = printable_path(out)
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise InputError("exists already, and is not an empty folder; remove it, or give another --out", at=out)
    if not out.resolve().parent.is_dir():
        raise InputError(f"there is no folder {printable_path(out.parent)}; make it first", at=out)
    if (folder := find_folder_around(out, gallery.path, gallery.sources.values())) is not None:
        raise InputError(
            f"{shown}: lies inside {printable_path(folder)}, where the gallery or its images are, so an update "
            "would index the copies too; give an --out outside it"
        )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder in a hidden one beside `out`, which replaces `out` once complete; what a killed export left goes."""
    from index.durable import open_for_lock, sync_path, try_lock

    unfinished = out.with_name(f".{out.name}.unfinished")
    data = unfinished / "retrieval-dataset"
    try:
        unfinished.mkdir(exist_ok=True)
        if foreign := sorted(set(os.listdir(unfinished)) - {data.name}):
            raise InputError(
                f"{printable_path(unfinished)}: expected nothing or what a killed export left there, found "
                f"{printable_path(foreign[0])}; move it elsewhere, or give another --out"
            )
        lock = open_for_lock(unfinished)
        if not try_lock(lock):
            os.close(lock)
            raise InputError("another export is writing it; wait until it is done", at=out)
        try:
            if data.exists():
                shutil.rmtree(data)
            data.mkdir()
            yield data
            os.sync()  # once, in place of every file by itself
            if out.exists():
                out.rmdir()
            data.rename(out)
            sync_path(out.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}; nothing is left of it", at=out) from error


def _read(gallery: Gallery, row: CatalogRow) -> bytes | Path | ImageError:
    """The path of an unchanged local file, or the checked bytes; or why neither can be had."""
    from index.images.image_files import modified_ns
    from index.sources.reading import read_indexed

    try:
        place = gallery.place_of(row)
        if place.offset is None and place.store is None:
            with suppress(OSError):
                status = place.file.stat()
                if (status.st_size, modified_ns(status)) == (row.size_bytes, row.mtime_ns):
                    return Path(os.path.realpath(place.file))
        return read_indexed(place)
    except ImageError as error:
        return error.apart()
    except InputError as error:
        return ImageError(path=printable_path(row.path), reason="unreadable", detail=str(error))
