"""Tiny-ImageNet, cut to the sizes of the SPA paper: a stand-in for WebVision that is small and has clean labels."""

from __future__ import annotations

from pathlib import Path

from index.errors import InputError
from index.text import printable_path
from training.data.datasets import Dataset, Record, list_dataset
from training.data.protocols.download import find_download, read_lines
from training.data.protocols.protocol import Protocol, as_dataset

ARCHIVE = "tiny-imagenet-200.zip"
TRAINING_CLASSES = 100
TRAINING_IMAGES = 300  # a class; the paper's 29,707 images of 100 classes
TEST_IMAGES = 74  # a class; its 7,382 images of 100 others


def load_tiny_imagenet(root: Path) -> Protocol:
    """The official download, or folders `train` and `test` of class folders, which are taken as they are.

    Of the download, the first 100 classes of wnids.txt train with 300 images each and the other classes are searched
    with 74 each: the first by name, all from its train folder. A label is the class's WordNet id.
    """
    for folder in (root, root / "tiny-imagenet"):
        if (folder / "train").is_dir() and _has_class_folders(folder / "test"):
            return Protocol("tiny-imagenet", list_dataset(folder / "train"), list_dataset(folder / "test"))
    folder = find_download(root, tops=["tiny-imagenet-200"], marker="wnids.txt", archive=ARCHIVE)
    classes = [line for _, line in read_lines(folder / "wnids.txt", archive=ARCHIVE)]
    train = _take_first(folder, classes[:TRAINING_CLASSES], TRAINING_IMAGES)
    test = _take_first(folder, classes[TRAINING_CLASSES:], TEST_IMAGES)
    return Protocol("tiny-imagenet", train, test)


def _has_class_folders(folder: Path) -> bool:
    """Whether a folder has class folders; the download's own test folder has one of unlabelled images."""
    return folder.is_dir() and any(entry.is_dir() and entry.name != "images" for entry in folder.iterdir())


def _take_first(folder: Path, classes: list[str], count: int) -> Dataset:
    records = []
    for name in classes:
        images = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not images:
            raise InputError(
                f"{printable_path(str(folder / 'train' / name / 'images'))}: no images (*.JPEG) of the class that "
                f"wnids.txt lists; unpack {ARCHIVE} again"
            )
        records += [Record(image, name) for image in images[:count]]
    return as_dataset(records)
