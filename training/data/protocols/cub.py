"""CUB-200-2011: birds; classes 1-100 train, the others are searched."""

from __future__ import annotations

from pathlib import Path

from index.errors import InputError
from index.text import printable_path, valid_text
from training.data.datasets import Record
from training.data.protocols.download import find_download, locate_images, read_rows
from training.data.protocols.protocol import Protocol, as_dataset

ARCHIVE = "CUB_200_2011.tgz"
TRAINING_CLASSES = 100


def load_cub(root: Path) -> Protocol:
    """The official lists; a label is the class's name, as `001.Black_footed_Albatross`."""
    folder = find_download(root, tops=["CUB_200_2011"], marker="images.txt", archive=ARCHIVE)
    classes = _read_numbered(folder / "classes.txt", (int, str), form="class_id class_name")
    class_of = _read_numbered(folder / "image_class_labels.txt", (int, int), form="image_id class_id")
    splits: tuple[list[Record], list[Record]] = ([], [])
    images = _read_numbered(folder / "images.txt", (int, str), form="image_id image_name")
    base = locate_images(folder, places=["images"], names=list(images.values()), archive=ARCHIVE)
    for image, name in images.items():
        if class_of.get(image) not in classes:
            raise InputError(
                f"{printable_path(str(folder / 'image_class_labels.txt'))}: image {image} has no class of "
                f"classes.txt (found {class_of.get(image)}); unpack {ARCHIVE} again"
            )
        number = class_of[image]
        splits[number > TRAINING_CLASSES].append(Record(base / name, valid_text(classes[number])))
    return Protocol("cub-200-2011", as_dataset(splits[0]), as_dataset(splits[1]))


def _read_numbered(path: Path, kinds: tuple[type, type], *, form: str) -> dict:
    return dict(read_rows(path, kinds, form=form, archive=ARCHIVE))
