"""Cars-196: classes 1-98 train, the others are searched."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import InputError, MissingDependencyError
from index.text import printable_path
from training.data.datasets import Record
from training.data.protocols.download import find_download, locate_images
from training.data.protocols.protocol import Protocol, as_dataset

TRAINING_CLASSES = 98
# what scipy's reader raises, beside its own MatReadError, when files are cut or overwritten at random
_DAMAGE = (OSError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error)


def load_cars(root: Path) -> Protocol:
    """car_ims with cars_annos.mat or, of the same photos, cars_train and cars_test with their development kit.

    A label is the class's name.
    """
    if any((folder / "cars_train").is_dir() for folder in (root, root / "stanford_cars")):
        listed = list(_read_kit(root))
    else:
        archive = "the download of Cars-196, beside car_ims.tgz,"
        folder = find_download(root, tops=[], marker="cars_annos.mat", archive=archive)
        names = _read_class_names(folder / "cars_annos.mat")
        listed = list(_read_annotations(folder / "cars_annos.mat", names, field="relative_im_path", images=folder))
    splits: tuple[list[Record], list[Record]] = ([], [])
    for record, number in listed:
        splits[number > TRAINING_CLASSES].append(record)
    return Protocol("cars-196", as_dataset(splits[0]), as_dataset(splits[1]))


def _read_kit(root: Path) -> Iterator[tuple[Record, int]]:
    folder = find_download(
        root, tops=["stanford_cars"], marker="devkit/cars_train_annos.mat", archive="car_devkit.tgz"
    )
    names = _read_class_names(folder / "devkit/cars_meta.mat")
    # a download of its own: the kit's list of test images has no classes
    test = "cars_test_annos_withlabels.mat"
    test_folder = find_download(folder, tops=["devkit"], marker=test, archive="the page of Cars-196")
    yield from _read_annotations(
        folder / "devkit/cars_train_annos.mat", names, field="fname", images=folder / "cars_train"
    )
    yield from _read_annotations(test_folder / test, names, field="fname", images=folder / "cars_test")


def _read_annotations(path: Path, names: list[str], *, field: str, images: Path) -> Iterator[tuple[Record, int]]:
    annotations = _read_variable(path, "annotations")
    if not {field, "class"} <= set(annotations.dtype.names or ()):
        raise InputError(
            f"{printable_path(str(path))}: expected annotations with {field} and class, found {annotations.dtype.names}"
        )
    files = [str(file) for file in annotations[field]]
    base = locate_images(
        images, places=[""], names=files, archive="car_ims.tgz, or cars_train.tgz and cars_test.tgz"
    )
    for row, (file, number) in enumerate(zip(files, annotations["class"], strict=True), start=1):
        if not isinstance(number, int | np.integer) or not 1 <= number <= len(names):
            raise InputError(
                f"{printable_path(str(path))}, annotation {row}: expected a class in 1..{len(names)}, found {number}"
            )
        yield Record(base / file, names[number - 1]), int(number)


def _read_class_names(path: Path) -> list[str]:
    return [str(name) for name in _read_variable(path, "class_names")]


def _read_variable(path: Path, name: str) -> Any:
    """One variable of a MATLAB file, (N,)."""
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such file; unpack car_devkit.tgz")
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise MissingDependencyError(package="scipy", extra="train", purpose="reading Cars-196") from error
    try:
        variables = loadmat(path, squeeze_me=True, variable_names=[name])
    except (*_DAMAGE, MatReadError) as error:
        raise InputError(f"{shown}: not a readable MATLAB file: {error}; download it again") from error
    if name not in variables:
        raise InputError(f"{shown}: expected a variable {name} in it; is it the file of the official download?")
    return np.atleast_1d(variables[name])
