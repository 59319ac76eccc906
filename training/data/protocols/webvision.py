"""The WebVision subset of the SPA paper: web images with the labels of the searches that found them.

The paper takes WebVision 2.0 (5,000 classes); 1.0 (1,000 classes) unpacks in the same way and is taken as well.
"""

from __future__ import annotations

from pathlib import Path

from index.errors import InputError
from index.text import printable_path
from training.data.datasets import Record, cap_classes
from training.data.protocols.download import find_download, locate_images, read_lines, read_rows
from training.data.protocols.protocol import Protocol, as_dataset

INFO = "info.tar of WebVision"
TRAINING_CLASSES = 100
CLASSES = 200
MAX_PER_CLASS = 300
# The paper does not say which 300: a draw over both search engines and every query of a class, the same everywhere.
# The first 300 of the lists would come from one engine, and mostly from one query.
DRAW_SEED = 0
TRAIN_LISTS = ("train_filelist_google.txt", "train_filelist_flickr.txt")
TRAIN_PLACES = ("", "train", "train_images_256")
VAL_PLACES = ("val_images_256", "val_images_resized", "val_images", "val", "")


def load_webvision(root: Path) -> Protocol:
    """Classes 1-100 train, at most 300 images each; the validation images of classes 101-200 are searched.

    A label is the class's WordNet id, the first word of its line in info/synsets.txt.
    """
    folder = find_download(root, tops=["webvision"], marker="info/synsets.txt", archive=INFO)
    synsets = [line.split()[0] for _, line in read_lines(folder / "info/synsets.txt", archive=INFO)][:CLASSES]
    if len(synsets) < CLASSES or len(set(synsets)) < CLASSES:
        raise InputError(
            f"{printable_path(str(folder / 'info/synsets.txt'))}: expected at least {CLASSES} different classes, one a "
            f"line, found {len(set(synsets))}; unpack {INFO} again"
        )
    rows = [row for name in TRAIN_LISTS for row in _read_list(folder / "info" / name, range(TRAINING_CLASSES))]
    base = locate_images(
        folder, places=TRAIN_PLACES, names=[name for name, _ in rows], archive="WebVision's training images"
    )
    train = [Record(base / name, synsets[number]) for name, number in rows]
    val_list = next(
        (path for path in (folder / "info/val_filelist.txt", folder / "val_filelist.txt") if path.is_file()),
        folder / "info/val_filelist.txt",
    )
    rows = list(_read_list(val_list, range(TRAINING_CLASSES, CLASSES)))
    base = locate_images(
        folder, places=VAL_PLACES, names=[name for name, _ in rows], archive="WebVision's validation images"
    )
    test = [Record(base / name, synsets[number]) for name, number in rows]
    return Protocol(
        "webvision", as_dataset(cap_classes(train, max_per_class=MAX_PER_CLASS, seed=DRAW_SEED)), as_dataset(test)
    )


def _read_list(path: Path, classes: range) -> list[tuple[str, int]]:
    rows = read_rows(path, (str, int), form="image_name class_number", archive=INFO)
    return [(name, number) for name, number in rows if number in classes]
