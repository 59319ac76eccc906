"""Source of a COCO annotation file: its images, labelled by the category of their largest box.

The images lie below the file's folder, or beside it in `images`, `data` or the folder that the file is named after, as
`val2017` of `annotations/instances_val2017.json`.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from index.errors import InputError, reading
from index.items import FoundItem
from index.paths import below
from index.sources.folder_metadata import describe_item
from index.sources.folder_walk import find_file
from index.sources.local_source import LocalSource, absolute_below
from index.sources.source import Reach
from index.sources.table_rows import TableRow, as_json_object, as_text, first_rows
from index.text import printable_path

logger = logging.getLogger(__name__)
_OWN_KEYS = {"id", "file_name", "width", "height", "license", "flickr_url", "coco_url", "date_captured"}
_HEAVY_KEYS = {"segmentation", "keypoints", "counts", "segments_info"}  # dropped while the file is parsed
_EXPECTED = 'expected COCO: an object with the lists "images", "annotations" and "categories"'


class CocoSource(LocalSource):
    """The images of a COCO file; categories of an image with several are its metadata `categories`."""

    kind: ClassVar[str] = "coco"
    reach = Reach.ANYWHERE
    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def find_files(self) -> Iterator[FoundItem]:
        """In the order of the file's images; the first entry of a file counts."""
        images, _ = read_images(Path(self.location))
        for path, row in first_rows(self.location, ((image.path, _as_row(image)) for image in images)):
            yield describe_item(find_file(path, relative=below(self.root, path)), row)


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An entry for an image in a COCO file, with its absolute path, and (annotation, name of its category)."""

    id: Any
    entry: Mapping[str, Any]
    path: str
    annotations: Sequence[tuple[Mapping[str, Any], str]]


LostAnnotation = tuple[Any, str, str]
"""An annotation whose image or category the file lacks: its id, the `file_name` of the image or "", the reason."""


def read_images(file: Path, folder: str | None = None) -> tuple[list[AnnotatedImage], list[LostAnnotation]]:
    """The images of a COCO file in its order; `folder` is what names are relative to, None finds it beside the file."""
    coco = _read(file)
    names, entries = _index(coco["categories"], "category", file), _index(coco["images"], "image", file)
    lost = _find_lost(coco["annotations"], entries, names, file=file)
    found: dict[Any, list[tuple[Mapping[str, Any], str]]] = {}
    for annotation in coco["annotations"]:
        category = names.get(_hashable(annotation.get("category_id")))
        if category is not None:
            name = as_text(category.get("name")).strip()
            found.setdefault(_hashable(annotation.get("image_id")), []).append((annotation, name))
    root = os.path.abspath(_find_images(file, coco["images"]) if folder is None else folder)
    images = [
        AnnotatedImage(key, entry, absolute_below(root, str(entry["file_name"])), found.get(key, ()))
        for key, entry in entries.items()
    ]
    return images, lost


def _as_row(image: AnnotatedImage) -> TableRow:
    """The image's entry, with its categories, that of the largest box first."""
    metadata = as_json_object({name: value for name, value in image.entry.items() if name not in _OWN_KEYS})
    areas: dict[str, float] = {}
    for annotation, name in image.annotations:
        areas[name] = max(areas.get(name, 0.0), _area(annotation))
    categories = sorted(areas, key=lambda name: -areas[name])
    if len(categories) > 1:
        metadata["categories"] = categories
    return TableRow(f"image {image.id}", str(image.entry["file_name"]), next(iter(categories), ""), metadata)


def _area(annotation: Mapping[str, Any]) -> float:
    box = annotation.get("bbox")
    if isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box):
        return float(box[2]) * float(box[3])
    area = annotation.get("area")
    return float(area) if isinstance(area, int | float) else 0.0


def _read(file: Path) -> dict[str, list[dict[str, Any]]]:
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
            raise InputError(f'"{name}" is no list of objects; {_EXPECTED}', at=file)
    return lists


def _without_heavy(values: dict[str, Any]) -> dict[str, Any]:
    """An object without outlines, which are most of a file and no use here."""
    for name in _HEAVY_KEYS & values.keys():
        del values[name]
    return values


def _index(values: list[dict[str, Any]], name: str, file: Path) -> dict[Any, dict[str, Any]]:
    """Images or categories by id."""
    found: dict[Any, dict[str, Any]] = {}
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


def _find_lost(
    annotations: list[dict[str, Any]], images: Mapping[Any, Any], categories: Mapping[Any, Any], *, file: Path
) -> list[LostAnnotation]:
    """Annotations of one object whose category or image the file lacks, with a warning; an InputError if all are so."""
    named = [one for one in annotations if one.get("category_id") is not None and not one.get("iscrowd")]
    lost = list[LostAnnotation]()
    for one in named:
        found = {name: _hashable(one.get(name)) for name in ("image_id", "category_id")}
        image = images.get(found["image_id"])
        if image is None or found["category_id"] not in categories:
            lacking = "image_id" if image is None else "category_id"
            reason = f"the file has no {lacking} {ascii(found[lacking])[:60]}"
            lost.append((one.get("id"), "" if image is None else image["file_name"], reason))
    if not lost:
        return lost
    problem = f"{len(lost)} of {len(named)} annotations have no image or category in the file: {lost[0][2]}"
    if images and len(lost) == len(named):
        raise InputError(f'{problem}; expected the "id" of each, as a number or as a text as it is there', at=file)
    logger.warning("%s: %s; they are left out", printable_path(file), problem)
    return lost


def _hashable(key: Any) -> Any:
    return key if isinstance(key, int | str | float) else None


def _find_images(file: Path, images: list[dict[str, Any]]) -> str:
    """The folder that the names of images are relative to: the first one that has the first image."""
    own = file.parent
    named = [own.parent / name for name in (file.stem.removeprefix("instances_"), file.stem.rpartition("_")[2])]
    for folder in (own, own / "images", own / "data", *named, own.parent / "images", own.parent):
        if images and os.path.lexists(folder / images[0]["file_name"]):
            return str(folder)
    return str(own)
