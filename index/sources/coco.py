"""Source of a COCO annotation file: its images, labelled by the category of their largest box.

The images lie below the file's folder, or beside it in `images`, `data` or the folder that the file is named after, as
`val2017` of `annotations/instances_val2017.json`.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from index.errors import InputError, reading
from index.items import FoundItem
from index.paths import below
from index.sources.folder_metadata import describe_item
from index.sources.folder_walk import find_file
from index.sources.local_source import LocalSource, absolute_below
from index.sources.source import Reach
from index.sources.table_rows import Row, as_json_object, as_text, first_rows
from index.text import printable_path

logger = logging.getLogger(__name__)
_OWN_KEYS = {"id", "file_name", "width", "height", "license", "flickr_url", "coco_url", "date_captured"}
_HEAVY_KEYS = {"segmentation", "keypoints", "counts", "segments_info"}  # dropped while the file is parsed
Entry = dict[str, Any]
"""An object of a COCO file."""
_EXPECTED = 'expected COCO: an object with the lists "images", "annotations" and "categories"'


class CocoSource(LocalSource):
    """The images of a COCO file; categories of an image with several are its metadata `categories`."""

    kind: ClassVar[str] = "coco"
    reach = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def find_files(self) -> Iterator[FoundItem]:
        """In the order of the file's images; the first entry of a file counts."""
        rows = (_as_row(*image) for image in _read_images(Path(self.location)))
        for path, _, row in first_rows(self.location, rows, str):
            yield describe_item(find_file(path, relative=below(self.root, path)), row)


def _read_images(file: Path) -> list[tuple[str, Entry, list[Entry]]]:
    """The images of a COCO file in its order: absolute path, entry, and annotations with their category as `label`.

    Annotations without an image or category in the file are left out with a warning; an InputError if all are.
    """
    coco = _read(file)
    categories, images = _index(coco["categories"], "category", file), _index(coco["images"], "image", file)
    found: dict[Any, list[Entry]] = {key: [] for key in images}
    lost, named = list[Entry](), 0
    for annotation in coco["annotations"]:
        image, category = (_hashable(annotation.get(name)) for name in ("image_id", "category_id"))
        is_object = annotation.get("category_id") is not None and not annotation.get("iscrowd")
        named += is_object
        if image in found and category in categories:
            found[image].append({**annotation, "label": as_text(categories[category].get("name")).strip()})
        elif is_object:
            lost.append(annotation)
    if lost:
        first = ", ".join(f"{name} {ascii(lost[0].get(name))[:60]}" for name in ("id", "image_id", "category_id"))
        problem = f"{len(lost)} of {named} annotations have no image or category in the file, first {first}"
        if images and len(lost) == named:
            raise InputError(f'{problem}; expected the "id" of each, as a number or as a text as it is there', at=file)
        logger.warning("%s: %s; they are left out", printable_path(file), problem)
    root = os.path.abspath(_find_images(file, coco["images"]))
    return [(absolute_below(root, entry["file_name"]), entry, found[key]) for key, entry in images.items()]


def _as_row(path: str, entry: Entry, annotations: Sequence[Entry]) -> Row:
    """The image's entry, with its categories, that of the largest box first."""
    metadata = as_json_object({name: value for name, value in entry.items() if name not in _OWN_KEYS})
    areas: dict[str, float] = {}
    for annotation in annotations:
        areas[annotation["label"]] = max(areas.get(annotation["label"], 0.0), _area(annotation))
    categories = sorted(areas, key=lambda name: -areas[name])
    if len(categories) > 1:
        metadata["categories"] = categories
    return f"image {entry['id']}", FoundItem(path, 0, 0, label=next(iter(categories), ""), metadata=metadata)


def _area(annotation: Entry) -> float:
    box = annotation.get("bbox")
    if isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box):
        return float(box[2]) * float(box[3])
    area = annotation.get("area")
    return float(area) if isinstance(area, int | float) else 0.0


def _read(file: Path) -> dict[str, list[Entry]]:
    try:
        with reading(file), file.open(encoding="utf-8-sig") as text:
            content = json.load(text, object_hook=_without_heavy)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no readable JSON: {error}; {_EXPECTED}", at=file) from error
    if not isinstance(content, dict) or "images" not in content:
        raise InputError(_EXPECTED, at=file)
    lists = {name: content.get(name, []) for name in ("images", "annotations", "categories")}
    for name, values in lists.items():
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise InputError(f'"{name}" is not a list of objects; {_EXPECTED}', at=file)
    return lists


def _without_heavy(values: Entry) -> Entry:
    """An object without outlines, which are most of a file and no use here."""
    for name in _HEAVY_KEYS & values.keys():
        del values[name]
    return values


def _index(values: list[Entry], name: str, file: Path) -> dict[Any, Entry]:
    """Images or categories by id."""
    found: dict[Any, Entry] = {}
    for number, value in enumerate(values, start=1):
        key = _hashable(value.get("id"))
        if key is None:
            raise InputError(f"{name} {number} has no id", at=file)
        path = value.get("file_name")
        if name == "image" and not (isinstance(path, str) and 0 < len(path) < 1 << 16 and "\0" not in path):
            raise InputError(f"the image with id {key!r} has no usable file_name", at=file)
        if key in found:
            raise InputError(f"two entries of a {name} have the id {key!r}; give each its own", at=file)
        found[key] = value
    return found


def _hashable(key: Any) -> Any:
    return key if isinstance(key, int | str | float) else None


def _find_images(file: Path, images: list[Entry]) -> str:
    """The folder that the names of images are relative to: the first one that has the first image."""
    own = file.parent
    named = [own.parent / name for name in (file.stem.removeprefix("instances_"), file.stem.rpartition("_")[2])]
    for folder in (own, own / "images", own / "data", *named, own.parent / "images", own.parent):
        if images and os.path.lexists(folder / images[0]["file_name"]):
            return str(folder)
    return str(own)
