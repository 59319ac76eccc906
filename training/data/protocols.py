"""Benchmarks: readers of their official downloads as these unpack, with their splits and the K of their Recall@K."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import InputError, MissingDependencyError
from index.evaluation.metrics import K_SETS
from index.sources.folder_walk import check_folder
from index.text import printable_path, valid_text
from training.data.datasets import Dataset, Record, cap_classes, list_dataset

SHOP_ARCHIVE = "the In-shop Clothes Retrieval Benchmark of DeepFashion"
SHOP_LIST = "list_eval_partition.txt"
SHOP_HEADER = "image_name item_id evaluation_status"
SHOP_STATUSES = ("train", "query", "gallery")


def load_in_shop(root: Path) -> Protocol:
    """The official list; a label is the item_id, and the test split holds queries and gallery in the list's order."""
    top = "In-shop Clothes Retrieval Benchmark"
    tops = [f"{place}{part}" for place in (f"{top}/", "") for part in ("Eval", "Anno")]
    lists = find_download(root, tops=[*tops, top], marker=SHOP_LIST, archive=SHOP_ARCHIVE)
    folder = lists.parent if lists.name in ("Eval", "Anno") else lists
    rows = _read_partition(lists / SHOP_LIST)
    base = {
        status: locate_images(
            folder,
            places=["", "Img", "img"],
            names=[name for name, _, seen in rows if seen == status],
            archive=f"Img/img.zip of {SHOP_ARCHIVE}",
        )
        for status in SHOP_STATUSES
    }
    listed = [(Record(base[status] / name, valid_text(item)), status) for name, item, status in rows]
    train = as_dataset(record for record, status in listed if status == "train")
    test = as_dataset(record for record, status in listed if status != "train")
    is_gallery = tuple(status == "gallery" for _, status in listed if status != "train")
    return Protocol("in-shop", train, test, is_gallery)


def _read_partition(path: Path) -> list[tuple[str, str, str]]:
    lines = iter(read_lines(path, archive=SHOP_ARCHIVE))
    number, count = next(lines, (1, ""))
    if not count.isdecimal():
        raise wrong_line(path, number, count, form="the number of images")
    number, header = next(lines, (2, ""))
    if header.split() != SHOP_HEADER.split():
        raise wrong_line(path, number, header, form=f"the header `{SHOP_HEADER}`")
    rows = []
    for number, line in lines:
        columns = line.split()
        if len(columns) != 3 or columns[2] not in SHOP_STATUSES:
            raise wrong_line(
                path, number, line, form=f"`{SHOP_HEADER}` with a status of {', '.join(SHOP_STATUSES)}"
            )
        rows.append((columns[0], columns[1], columns[2]))
    if len(rows) != int(count):
        raise InputError(
            f"{printable_path(str(path))}: its first line announces {count} images and {len(rows)} follow; "
            "download it again, or mend that line if you cut the list yourself"
        )
    return rows


SOP_ARCHIVE = "Stanford_Online_Products.zip"
SOP_FORM = "image_id class_id super_class_id path"


def load_sop(root: Path) -> Protocol:
    """The official lists; a label is the product's class_id."""
    folder = find_download(root, tops=["Stanford_Online_Products"], marker="Ebay_train.txt", archive=SOP_ARCHIVE)
    train, test = _read_split(folder / "Ebay_train.txt"), _read_split(folder / "Ebay_test.txt")
    return Protocol("sop", train, test)


def _read_split(path: Path) -> Dataset:
    rows = list(read_rows(path, (int, int, int, str), form=SOP_FORM, archive=SOP_ARCHIVE, header=True))
    base = locate_images(path.parent, places=[""], names=[name for *_, name in rows], archive=SOP_ARCHIVE)
    return as_dataset(Record(base / name, str(number)) for _, number, _, name in rows)


CARS_CLASSES = 98
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
        splits[number > CARS_CLASSES].append(record)
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


CUB_ARCHIVE = "CUB_200_2011.tgz"
CUB_CLASSES = 100


def load_cub(root: Path) -> Protocol:
    """The official lists; a label is the class's name, as `001.Black_footed_Albatross`."""
    folder = find_download(root, tops=["CUB_200_2011"], marker="images.txt", archive=CUB_ARCHIVE)
    classes = _read_numbered(folder / "classes.txt", (int, str), form="class_id class_name")
    class_of = _read_numbered(folder / "image_class_labels.txt", (int, int), form="image_id class_id")
    splits: tuple[list[Record], list[Record]] = ([], [])
    images = _read_numbered(folder / "images.txt", (int, str), form="image_id image_name")
    base = locate_images(folder, places=["images"], names=list(images.values()), archive=CUB_ARCHIVE)
    for image, name in images.items():
        if class_of.get(image) not in classes:
            raise InputError(
                f"{printable_path(str(folder / 'image_class_labels.txt'))}: image {image} has no class of "
                f"classes.txt (found {class_of.get(image)}); unpack {CUB_ARCHIVE} again"
            )
        number = class_of[image]
        splits[number > CUB_CLASSES].append(Record(base / name, valid_text(classes[number])))
    return Protocol("cub-200-2011", as_dataset(splits[0]), as_dataset(splits[1]))


def _read_numbered(path: Path, kinds: tuple[type, type], *, form: str) -> dict:
    return dict(read_rows(path, kinds, form=form, archive=CUB_ARCHIVE))


# The subset of the SPA paper: web images with the labels of the searches that found them. The paper takes WebVision 2.0
# (5,000 classes); 1.0 (1,000 classes) unpacks in the same way and is taken as well.
WEB_INFO = "info.tar of WebVision"
WEB_TRAINING = 100
WEB_CLASSES = 200
WEB_PER_CLASS = 300
# The paper does not say which 300: a draw over both search engines and every query of a class, the same everywhere.
# The first 300 of the lists would come from one engine, and mostly from one query.
WEB_SEED = 0
WEB_LISTS = ("train_filelist_google.txt", "train_filelist_flickr.txt")
WEB_TRAIN_PLACES = ("", "train", "train_images_256")
WEB_VAL_PLACES = ("val_images_256", "val_images_resized", "val_images", "val", "")


def load_webvision(root: Path) -> Protocol:
    """Classes 1-100 train, at most 300 images each; the validation images of classes 101-200 are searched.

    A label is the class's WordNet id, the first word of its line in info/synsets.txt.
    """
    folder = find_download(root, tops=["webvision"], marker="info/synsets.txt", archive=WEB_INFO)
    synsets = [line.split()[0] for _, line in read_lines(folder / "info/synsets.txt", archive=WEB_INFO)][
        :WEB_CLASSES
    ]
    if len(synsets) < WEB_CLASSES or len(set(synsets)) < WEB_CLASSES:
        raise InputError(
            f"{printable_path(str(folder / 'info/synsets.txt'))}: expected at least {WEB_CLASSES} different classes, "
            f"one a line, found {len(set(synsets))}; unpack {WEB_INFO} again"
        )
    rows = [row for name in WEB_LISTS for row in _read_list(folder / "info" / name, range(WEB_TRAINING))]
    base = locate_images(
        folder, places=WEB_TRAIN_PLACES, names=[name for name, _ in rows], archive="WebVision's training images"
    )
    train = [Record(base / name, synsets[number]) for name, number in rows]
    val_list = next(
        (path for path in (folder / "info/val_filelist.txt", folder / "val_filelist.txt") if path.is_file()),
        folder / "info/val_filelist.txt",
    )
    rows = list(_read_list(val_list, range(WEB_TRAINING, WEB_CLASSES)))
    base = locate_images(
        folder, places=WEB_VAL_PLACES, names=[name for name, _ in rows], archive="WebVision's validation images"
    )
    test = [Record(base / name, synsets[number]) for name, number in rows]
    return Protocol(
        "webvision", as_dataset(cap_classes(train, max_per_class=WEB_PER_CLASS, seed=WEB_SEED)), as_dataset(test)
    )


def _read_list(path: Path, classes: range) -> list[tuple[str, int]]:
    rows = read_rows(path, (str, int), form="image_name class_number", archive=WEB_INFO)
    return [(name, number) for name, number in rows if number in classes]


TINY_ARCHIVE = "tiny-imagenet-200.zip"
TINY_CLASSES = 100
TINY_TRAINING_IMAGES = 300  # a class; the paper's 29,707 images of 100 classes
TINY_TEST_IMAGES = 74  # a class; its 7,382 images of 100 others


def load_tiny_imagenet(root: Path) -> Protocol:
    """The official download, or folders `train` and `test` of class folders, which are taken as they are.

    Of the download, the first 100 classes of wnids.txt train with 300 images each and the other classes are searched
    with 74 each: the first by name, all from its train folder. A label is the class's WordNet id.
    """
    for folder in (root, root / "tiny-imagenet"):
        searched = folder / "test"  # that of the download has one folder, of unlabelled images
        entries = list(searched.iterdir()) if searched.is_dir() else []
        if (folder / "train").is_dir() and any(one.is_dir() and one.name != "images" for one in entries):
            return Protocol("tiny-imagenet", list_dataset(folder / "train"), list_dataset(folder / "test"))
    folder = find_download(root, tops=["tiny-imagenet-200"], marker="wnids.txt", archive=TINY_ARCHIVE)
    classes = [line for _, line in read_lines(folder / "wnids.txt", archive=TINY_ARCHIVE)]
    train = _take_first(folder, classes[:TINY_CLASSES], TINY_TRAINING_IMAGES)
    test = _take_first(folder, classes[TINY_CLASSES:], TINY_TEST_IMAGES)
    return Protocol("tiny-imagenet", train, test)


def _take_first(folder: Path, classes: list[str], count: int) -> Dataset:
    records = []
    for name in classes:
        images = sorted((folder / "train" / name / "images").glob("*.JPEG"))
        if not images:
            raise InputError(
                f"{printable_path(str(folder / 'train' / name / 'images'))}: no images (*.JPEG) of the class that "
                f"wnids.txt lists; unpack {TINY_ARCHIVE} again"
            )
        records += [Record(image, name) for image in images[:count]]
    return as_dataset(records)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One benchmark as its papers use it.

    `is_gallery` has one entry per test record; None where every test image is query and gallery member in turn
    (leave-one-out). Where it is given, a query searches the gallery only and is no member of it.
    """

    name: str
    train: Dataset
    test: Dataset
    is_gallery: tuple[bool, ...] | None = None

    @property
    def ks(self) -> tuple[int, ...]:
        """The K of Recall@K that the literature reports on it."""
        return K_SETS[self.name]


def as_dataset(records: Iterable[Record]) -> Dataset:
    """A dataset of records whose files have not been looked at."""
    return Dataset(tuple(records), ())


LOOKED_FOR = 16  # listed images that are tried before saying that nothing was unpacked


def find_download(root: Path, *, tops: Sequence[str], marker: str, archive: str) -> Path:
    """The absolute folder that holds the file `marker`: `root` itself, or one of the archive's top folders in it."""
    for folder in (root, *(root / top for top in tops)):
        if (folder / marker).is_file():
            return folder.resolve()
    raise InputError(
        f"{printable_path(str(root / marker))}: no such file; {archive} has it as "
        f"{'/'.join([*tops[:1], marker])}: name the folder that it was unpacked in"
    )


def read_lines(path: Path, *, archive: str) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, without their ends, numbered from 1.

    Bytes that are no UTF-8 are kept as in file names, because most of what is listed are file names.
    """
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such file; it comes with {archive}")
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if "\0" in line:
                    raise InputError(f"{shown}, line {number}: no text; unpack {archive} again")
                if text := line.strip():
                    yield number, text
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error


def read_rows(
    path: Path, kinds: tuple[type, ...], *, form: str, archive: str, header: bool = False
) -> Iterator[tuple[Any, ...]]:
    """The columns of every line, converted to `kinds`; columns are parted by white space.

    Args:
        form: what a line looks like, for the message; the first line itself where there is a header.
    """
    for row, (number, line) in enumerate(read_lines(path, archive=archive)):
        columns = line.split()
        if header and row == 0:
            if columns != form.split():
                raise wrong_line(path, number, line, form=f"the header `{form}`")
            continue
        try:
            yield tuple(kind(column) for kind, column in zip(kinds, columns, strict=True))
        except ValueError as error:
            raise wrong_line(path, number, line, form=f"`{form}`") from error


def wrong_line(path: Path, number: int, line: str, *, form: str) -> InputError:
    """The error for a line that is not of the form expected."""
    seen = printable_path(line if len(line) <= 80 else line[:80] + "…")
    return InputError(f"{printable_path(str(path))}, line {number}: expected {form}, found `{seen}`")


def locate_images(folder: Path, *, places: Sequence[str], names: Sequence[str], archive: str) -> Path:
    """The first of `places` below `folder` that has one of some of the listed images; any, where none is listed.

    Only a few names, spread over the list, are tried: what else is missing is found out when images are read.
    """
    tried = names[:: -(-len(names) // LOOKED_FOR) or 1]
    for place in places:
        if not tried or any((folder / place / name).is_file() for name in tried):
            return folder / place
    raise InputError(
        f"{printable_path(str(folder))}: the images are not unpacked; of {len(tried)} listed images that were looked "
        f"for there is none, the first is {printable_path(str(Path(places[0], tried[0])))}; unpack {archive}"
    )


logger = logging.getLogger(__name__)

LOADERS: dict[str, Callable[[Path], Protocol]] = {
    "tiny-imagenet": load_tiny_imagenet,
    "webvision": load_webvision,
    "cub-200-2011": load_cub,
    "cars-196": load_cars,
    "sop": load_sop,
    "in-shop": load_in_shop,
}
# (images, classes) of the training and of the test split, as published
PUBLISHED = {
    "tiny-imagenet": ((30_000, 100), (7_400, 100)),
    "webvision": ((29_707, 100), (7_382, 100)),
    "cub-200-2011": ((5_864, 100), (5_924, 100)),
    "cars-196": ((8_054, 98), (8_131, 98)),
    "sop": ((59_551, 11_318), (60_502, 11_316)),
    "in-shop": ((25_882, 3_997), (26_830, 3_985)),
}


def load_protocol(name: str, root: Path) -> Protocol:
    """The splits of a benchmark, listed without decoding anything.

    Args:
        name: one of `LOADERS`.
        root: the folder that the archive was unpacked in, or the archive's own top folder.
    """
    if name not in LOADERS:
        raise InputError(f"no such benchmark: {name!r}; expected one of {', '.join(LOADERS)}")
    check_folder(root)
    protocol = LOADERS[name](root)
    for split, dataset, published in zip(
        ("training", "test"), (protocol.train, protocol.test), PUBLISHED[name], strict=True
    ):
        seen = _size(dataset)
        if not dataset.records:
            raise InputError(f"{printable_path(str(root))}: its lists name no {split} image of {name}")
        if seen != published:
            logger.warning(
                "%s: the %s split has %d images of %d classes, published are %d of %d: "
                "figures are not comparable with the papers'",
                *(name, split, *seen, *published),
            )
    return protocol


def _size(dataset: Dataset) -> tuple[int, int]:
    return len(dataset.records), len({record.label for record in dataset.records})
