"""Crops of a COCO file's boxes: one image for each box, in a folder for each category, with a metadata table."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.durable import hash_file, is_temporary, make_temporary, replacing, write_durably
from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.markers import CROPS_MARK, read_object
from index.progress import Progress, no_progress
from index.sources.coco import Entry, read_images
from index.sources.table_rows import valid_unicode
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores
from retrieval_app.dataset_export.safe_names import SafeNames

TABLE = "metadata.jsonl"
_QUALITY = 95
_WHOLE = 1 << 30  # target side: no image is reduced, and no side of a box is longer
_READ_AHEAD = 8


_Image = tuple[str, Entry, list[Entry]]
"""Path, entry and boxes."""


@dataclass(frozen=True, slots=True)
class CropReport:
    """Written crops: their number, by label, and annotation, image and reason of each box without a crop."""

    out: str
    crops: int
    labels: Mapping[str, int]
    left_out: tuple[Mapping[str, Any], ...]


def crop_boxes(
    annotations: Path, out: Path, *, images: Path | None = None, margin: float = 0.0, progress: Progress = no_progress
) -> CropReport:
    """Write each box of a COCO file as a JPEG of quality 95, in a folder of its category.

    metadata.jsonl is written last. A call with the same arguments goes on where a killed one stopped.

    Args:
        images: the folder that names of images are relative to; None: found beside the file.
        margin: added on each side, as a share of the box's width or height.
    """
    found = [
        (path, entry, [box for box in boxes if not box.get("iscrowd")])
        for path, entry, boxes in read_images(annotations, None if images is None else str(images))
    ]
    if not any(boxes for _, _, boxes in found):
        raise InputError("no image has a box with a category; nothing is cropped", at=annotations)
    try:
        folder = None if images is None else os.path.abspath(images)
        mark = {"annotations": hash_file(annotations), "images": folder, "margin": margin}
        _open_folder(out, mark)
        labels, left_out = dict[str, int](), list[Mapping[str, Any]]()
        with replacing(out / TABLE) as table, table.open("w", encoding="utf-8") as file:
            cropping = map_ahead(
                lambda planned: _crop_image(*planned, out=out, margin=margin),
                _plan(found, out),
                workers=usable_cores(),
                ahead=_READ_AHEAD,
            )
            with closing(cropping) as done:
                for number, (rows, bad) in enumerate(done, start=1):
                    for row in rows:
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                        labels[row["label"]] = labels.get(row["label"], 0) + 1
                    left_out += bad
                    progress(number, len(found))
            os.sync()
    except OSError as error:
        problem = f"{printable_path(out)}: cannot be written: {error.strerror or error}"
        raise InputError(f"{problem}; what is written stays: run it again to go on") from error
    return CropReport(valid_text(str(out)), sum(labels.values()), dict(sorted(labels.items())), tuple(left_out))


def _open_folder(out: Path, mark: Mapping[str, Any]) -> None:
    """Make the folder with its mark, or check that it is of the same crops; remove unfinished files."""
    if out.is_dir() and any(out.iterdir()):
        if read_object(out / CROPS_MARK) != mark:
            raise InputError(
                f"{printable_path(out)}: expected no folder, an empty one, or crops of the same file and "
                "--images with the same margin; remove it, or give another --out"
            )
        for path in [path for path in out.iterdir() if is_temporary(path.name)]:
            path.unlink()
    else:
        out.mkdir(exist_ok=True)
        write_durably(out / CROPS_MARK, json.dumps(mark).encode())


def _plan(found: list[_Image], out: Path) -> Iterator[tuple[_Image, list[str]]]:
    """Each image with the file names of its crops, the same in every call."""
    folders, files = SafeNames(CROPS_MARK, TABLE), dict[str, SafeNames]()
    for image in found:
        names, (path, _, boxes) = [], image
        for annotation in boxes:
            folder = folders.name(annotation["label"])
            (out / folder).mkdir(exist_ok=True)
            taken = files.setdefault(folder, SafeNames())
            stem = f"{Path(path).stem}-{annotation.get('id')}"
            names.append(f"{folder}/{taken.take(stem, suffix='.jpg', key=path)}")
        yield image, names


def _crop_image(
    image: _Image, names: list[str], *, out: Path, margin: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the table, and what is left out, of one image; only missing crops are written."""
    rows, bad, decoded = list[dict[str, Any]](), list[dict[str, Any]](), None
    path, entry, boxes = image
    size = entry.get("width"), entry.get("height")
    for name, annotation in zip(names, boxes, strict=True):
        about = _describe(entry["file_name"], annotation.get("id"))
        target = out / name
        try:
            if not (target.exists() and target.stat().st_size):  # empty after a power cut
                if decoded is None:
                    decoded = read_image(Path(path), target_side=_WHOLE)
                if decoded.size != size and None not in size:
                    raise ValueError(f"the image has {decoded.size} pixels, the file says {size}")
                crop = decoded.crop(_find_edges(annotation.get("bbox"), decoded.size, margin=margin))
                temporary = make_temporary(out)
                crop.save(temporary, "JPEG", quality=_QUALITY, subsampling=0)
                temporary.replace(target)
        except (ImageError, ValueError) as error:
            bad.append({**about, "reason": error.reason if isinstance(error, ImageError) else str(error)})
        else:
            rows.append({"file_name": name, "label": annotation["label"], **about, "box": annotation["bbox"]})
    return rows, bad


def _describe(name: str, number: Any) -> dict[str, Any]:
    """The image and the id of an annotation."""
    return {
        "source_image": valid_unicode(name),
        "annotation_id": valid_unicode(number) if isinstance(number, str) else number,
    }


def _find_edges(box: Any, size: tuple[int, int], *, margin: float) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box with its margin, within the image; a ValueError where nothing is left."""
    is_box = isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box)
    if not is_box or not all(-_WHOLE < side < _WHOLE for side in box) or min(box[2:]) <= 0:
        raise ValueError(f"bbox is {box!r:.80}; expected [x, y, width, height] in pixels, above 0")
    x, y, width, height = box
    left, top = max(0, math.floor(x - margin * width)), max(0, math.floor(y - margin * height))
    right = min(size[0], math.ceil(x + (1 + margin) * width))
    bottom = min(size[1], math.ceil(y + (1 + margin) * height))
    if left >= right or top >= bottom:
        raise ValueError(f"bbox {box!r:.80} lies outside the image of {size[0]} x {size[1]} pixels")
    return left, top, right, bottom
