"""Benchmark protocols: readers of the official downloads, with their splits and K of Recall@K."""

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

logger = logging.getLogger(__name__)
LOOKED_FOR = 16  # listed images that are tried before saying that nothing was unpacked


@dataclass(frozen=True, slots=True)
class Protocol:
    """A benchmark as the papers use it.

    `is_gallery` has one entry per test record: queries search the gallery only. None: each test image searches all
    others.
    """

    name: str
    train: Dataset
    test: Dataset
    is_gallery: tuple[bool, ...] | None = None

    @property
    def ks(self) -> tuple[int, ...]:
        """K of Recall@K in the literature."""
        return K_SETS[self.name]


@dataclass(frozen=True, slots=True)
class _Download:
    """Unpacked archive: the absolute folder of its files, and its name for messages."""

    folder: Path
    archive: str

    @classmethod
    def find(cls, root: Path, *, marker: str, archive: str, tops: Sequence[str] = ()) -> "_Download":
        """The download with the file `marker`: in `root`, or in one of the archive's top folders there."""
        for folder in (root, *(root / top for top in tops)):
            if (folder / marker).is_file():
                return cls(folder.resolve(), archive)
        raise InputError(
            f"{printable_path(str(root / marker))}: no such file; {archive} has it as "
            f"{'/'.join([*tops[:1], marker])}: name the folder that it was unpacked in"
        )

    def read_lines(self, name: str) -> Iterator[tuple[int, str]]:
        """Non-blank lines of a text file, numbered from 1; bytes that are not UTF-8 are kept, as in file names."""
        path = self.folder / name
        shown = printable_path(str(path))
        if not path.is_file():
            raise InputError(f"{shown}: no such file; it comes with {self.archive}")
        try:
            with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
                for number, line in enumerate(file, start=1):
                    if "\0" in line:
                        raise InputError(f"{shown}, line {number}: no text; unpack {self.archive} again")
                    if text := line.strip():
                        yield number, text
        except OSError as error:
            raise InputError(f"{shown}: cannot be read: {error.strerror}") from error

    def read_rows(
        self, name: str, kinds: tuple[Callable[[str], Any], ...], *, form: str, header: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Columns of every line, separated by white space and converted by `kinds`.

        Args:
            form: of a line, for the message.
            header: number of the header line; rows follow it. None: there is none.
        """
        shown = printable_path(str(self.folder / name))
        for row, (number, line) in enumerate(self.read_lines(name), start=1):
            columns, expected = line.split(), f"`{form}`"
            if header is not None and row <= header:
                if row < header or columns == form.split():
                    continue
                columns, expected = [], f"the header `{form}`"
            try:
                yield tuple(kind(column) for kind, column in zip(kinds, columns, strict=True))
            except ValueError as error:
                seen = printable_path(line if len(line) <= 80 else line[:80] + "…")
                raise InputError(f"{shown}, line {number}: expected {expected}, found `{seen}`") from error

    def locate(self, names: Sequence[str], *, places: Sequence[str] = ("",), archive: str | None = None) -> Path:
        """The first of `places` that has some of the listed images, by a few names spread over the list."""
        tried = names[:: -(-len(names) // LOOKED_FOR) or 1]
        for place in places:
            if not tried or any((self.folder / place / name).is_file() for name in tried):
                return self.folder / place
        raise InputError(
            f"{printable_path(str(self.folder))}: the images are not unpacked; of {len(tried)} listed images that were "
            f"looked for there is none, the first is {printable_path(str(Path(places[0], tried[0])))}; unpack "
            f"{archive or self.archive}"
        )


def _as_dataset(records: Iterable[Record]) -> Dataset:
    """Dataset of records whose files were not opened."""
    return Dataset(tuple(records), ())


def _split_by_class(name: str, listed: Sequence[tuple[Record, int]], *, trained: int) -> Protocol:
    """Classes up to the number `trained` train, the others are searched."""
    train = (record for record, number in listed if number <= trained)
    return Protocol(name, _as_dataset(train), _as_dataset(record for record, number in listed if number > trained))


def _read_status(text: str) -> str:
    if text not in ("train", "query", "gallery"):
        raise ValueError(text)
    return text


def load_in_shop(root: Path) -> Protocol:
    """Official list; a label is the item_id, and the test split has queries and gallery in the list's order."""
    top, archive = "In-shop Clothes Retrieval Benchmark", "the In-shop Clothes Retrieval Benchmark of DeepFashion"
    tops = [f"{place}{part}" for place in (f"{top}/", "") for part in ("Eval", "Anno")]
    lists = _Download.find(root, tops=[*tops, top], marker="list_eval_partition.txt", archive=archive)
    rows = list(
        lists.read_rows(
            "list_eval_partition.txt", (str, str, _read_status), form="image_name item_id evaluation_status", header=2
        )
    )
    announced = next(lists.read_lines("list_eval_partition.txt"))[1]
    if announced != str(len(rows)):
        raise InputError(
            f"{printable_path(str(lists.folder / 'list_eval_partition.txt'))}: its first line announces "
            f"{printable_path(announced)} images and {len(rows)} follow; download it again, or mend that line if you "
            "cut the list yourself"
        )
    folder = lists.folder.parent if lists.folder.name in ("Eval", "Anno") else lists.folder
    images = _Download(folder, f"Img/img.zip of {archive}")
    base = {
        status: images.locate([name for name, _, seen in rows if seen == status], places=("", "Img", "img"))
        for status in ("train", "query", "gallery")
    }
    listed = [(Record(base[status] / name, valid_text(item)), status) for name, item, status in rows]
    train = _as_dataset(record for record, status in listed if status == "train")
    test = _as_dataset(record for record, status in listed if status != "train")
    is_gallery = tuple(status == "gallery" for _, status in listed if status != "train")
    return Protocol("in-shop", train, test, is_gallery)


def load_sop(root: Path) -> Protocol:
    """Official lists; a label is the product's class_id."""
    archive, form = "Stanford_Online_Products.zip", "image_id class_id super_class_id path"
    download = _Download.find(root, tops=["Stanford_Online_Products"], marker="Ebay_train.txt", archive=archive)

    def read_split(name: str) -> Dataset:
        rows = list(download.read_rows(name, (int, int, int, str), form=form, header=1))
        base = download.locate([image for *_, image in rows])
        return _as_dataset(Record(base / image, str(number)) for _, number, _, image in rows)

    return Protocol("sop", read_split("Ebay_train.txt"), read_split("Ebay_test.txt"))


CARS_CLASSES = 98
# what scipy's reader raises, beside its own MatReadError, when files are cut or overwritten at random
_DAMAGE = (OSError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error)


def load_cars(root: Path) -> Protocol:
    """car_ims with cars_annos.mat or, of the same photos, cars_train and cars_test with their development kit."""
    if any((folder / "cars_train").is_dir() for folder in (root, root / "stanford_cars")):
        listed = list(_read_kit(root))
    else:
        archive = "the download of Cars-196, beside car_ims.tgz,"
        folder = _Download.find(root, marker="cars_annos.mat", archive=archive).folder
        names = _read_class_names(folder / "cars_annos.mat")
        listed = list(_read_annotations(folder / "cars_annos.mat", names, field="relative_im_path", images=folder))
    return _split_by_class("cars-196", listed, trained=CARS_CLASSES)


def _read_kit(root: Path) -> Iterator[tuple[Record, int]]:
    marker = "devkit/cars_train_annos.mat"
    folder = _Download.find(root, tops=["stanford_cars"], marker=marker, archive="car_devkit.tgz").folder
    names = _read_class_names(folder / "devkit/cars_meta.mat")
    # a download of its own: the kit's list of test images has no classes
    test = "cars_test_annos_withlabels.mat"
    tests = _Download.find(folder, tops=["devkit"], marker=test, archive="the page of Cars-196").folder
    yield from _read_annotations(folder / marker, names, field="fname", images=folder / "cars_train")
    yield from _read_annotations(tests / test, names, field="fname", images=folder / "cars_test")


def _read_annotations(path: Path, names: list[str], *, field: str, images: Path) -> Iterator[tuple[Record, int]]:
    annotations = _read_variable(path, "annotations")
    if not {field, "class"} <= set(annotations.dtype.names or ()):
        raise InputError(
            f"{printable_path(str(path))}: expected annotations with {field} and class, found {annotations.dtype.names}"
        )
    files = [str(file) for file in annotations[field]]
    base = _Download(images, "car_ims.tgz, or cars_train.tgz and cars_test.tgz").locate(files)
    for row, (file, number) in enumerate(zip(files, annotations["class"], strict=True), start=1):
        if not isinstance(number, int | np.integer) or not 1 <= number <= len(names):
            raise InputError(
                f"{printable_path(str(path))}, annotation {row}: expected a class in 1..{len(names)}, found {number}"
            )
        yield Record(base / file, names[number - 1]), int(number)


def _read_class_names(path: Path) -> list[str]:
    return [str(name) for name in _read_variable(path, "class_names")]


def _read_variable(path: Path, name: str) -> Any:
    """A variable of a MATLAB file, (N,)."""
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


def load_cub(root: Path) -> Protocol:
    """Official lists; a label is the class's name, as `001.Black_footed_Albatross`. The first 100 classes train."""
    download = _Download.find(root, tops=["CUB_200_2011"], marker="images.txt", archive="CUB_200_2011.tgz")
    classes = dict(download.read_rows("classes.txt", (int, str), form="class_id class_name"))
    class_of = dict(download.read_rows("image_class_labels.txt", (int, int), form="image_id class_id"))
    images = dict(download.read_rows("images.txt", (int, str), form="image_id image_name"))
    base, listed = download.locate(list(images.values()), places=["images"]), []
    for image, name in images.items():
        if class_of.get(image) not in classes:
            raise InputError(
                f"{printable_path(str(download.folder / 'image_class_labels.txt'))}: image {image} has no class of "
                f"classes.txt (found {class_of.get(image)}); unpack {download.archive} again"
            )
        number = class_of[image]
        listed.append((Record(base / name, valid_text(classes[number])), number))
    return _split_by_class("cub-200-2011", listed, trained=100)


# The subset of the SPA paper: web images with the labels of the searches that found them. The paper takes WebVision 2.0
# (5,000 classes); 1.0 (1,000 classes) unpacks in the same way and is taken as well.
WEB_TRAINING = 100
WEB_CLASSES = 200
WEB_PER_CLASS = 300
# The paper does not say which 300: a draw over both search engines and every query of a class, the same everywhere.
# The first 300 of the lists would come from one engine, and mostly from one query.
WEB_SEED = 0
WEB_LISTS = ("info/train_filelist_google.txt", "info/train_filelist_flickr.txt")
WEB_TRAIN_PLACES = ("", "train", "train_images_256")
WEB_VAL_PLACES = ("val_images_256", "val_images_resized", "val_images", "val", "")


def load_webvision(root: Path) -> Protocol:
    """Classes 1-100 train, at most 300 images each; the validation images of classes 101-200 are searched.

    A label is the class's WordNet id, the first word of its line in info/synsets.txt.
    """
    download = _Download.find(root, tops=["webvision"], marker="info/synsets.txt", archive="info.tar of WebVision")
    synsets = [line.split()[0] for _, line in download.read_lines("info/synsets.txt")][:WEB_CLASSES]
    if len(set(synsets)) < WEB_CLASSES:
        raise InputError(
            f"{printable_path(str(download.folder / 'info/synsets.txt'))}: expected at least {WEB_CLASSES} different "
            f"classes, one a line, found {len(set(synsets))}; unpack {download.archive} again"
        )

    def list_split(names: Sequence[str], classes: range, *, places: Sequence[str], archive: str) -> list[Record]:
        form = "image_name class_number"
        rows = [row for name in names for row in download.read_rows(name, (str, int), form=form) if row[1] in classes]
        base = download.locate([name for name, _ in rows], places=places, archive=archive)
        return [Record(base / name, synsets[number]) for name, number in rows]

    train = list_split(WEB_LISTS, range(WEB_TRAINING), places=WEB_TRAIN_PLACES, archive="WebVision's training images")
    val = "val_filelist.txt" if (download.folder / "val_filelist.txt").is_file() else "info/val_filelist.txt"
    test = list_split(
        [val], range(WEB_TRAINING, WEB_CLASSES), places=WEB_VAL_PLACES, archive="WebVision's validation images"
    )
    drawn = cap_classes(train, max_per_class=WEB_PER_CLASS, seed=WEB_SEED)
    return Protocol("webvision", _as_dataset(drawn), _as_dataset(test))


TINY_CLASSES = 100
TINY_TRAINING_IMAGES = 300  # a class; the paper's 29,707 images of 100 classes
TINY_TEST_IMAGES = 74  # a class; its 7,382 images of 100 others


def load_tiny_imagenet(root: Path) -> Protocol:
    """Official download, or folders `train` and `test` of class folders, which are taken as they are.

    Of the download, the first 100 classes of wnids.txt train with 300 images each and the others are searched with 74
    each, the first by name from the train folder. A label is the class's WordNet id.
    """
    for folder in (root, root / "tiny-imagenet"):
        searched = folder / "test"  # that of the download has one folder, of unlabelled images
        entries = list(searched.iterdir()) if searched.is_dir() else []
        if (folder / "train").is_dir() and any(one.is_dir() and one.name != "images" for one in entries):
            return Protocol("tiny-imagenet", list_dataset(folder / "train"), list_dataset(folder / "test"))
    archive = "tiny-imagenet-200.zip"
    download = _Download.find(root, tops=["tiny-imagenet-200"], marker="wnids.txt", archive=archive)
    classes = [line for _, line in download.read_lines("wnids.txt")]
    train = _take_first(download, classes[:TINY_CLASSES], TINY_TRAINING_IMAGES)
    test = _take_first(download, classes[TINY_CLASSES:], TINY_TEST_IMAGES)
    return Protocol("tiny-imagenet", train, test)


def _take_first(download: _Download, classes: list[str], count: int) -> Dataset:
    records = []
    for name in classes:
        folder = download.folder / "train" / name / "images"
        images = sorted(folder.glob("*.JPEG"))
        if not images:
            raise InputError(
                f"{printable_path(str(folder))}: no images (*.JPEG) of the class that wnids.txt lists; unpack "
                f"{download.archive} again"
            )
        records += [Record(image, name) for image in images[:count]]
    return _as_dataset(records)


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
    """Splits of a benchmark, listed without decoding; `root` is the unpacked archive or the folder around it."""
    if name not in LOADERS:
        raise InputError(f"no such benchmark: {name!r}; expected one of {', '.join(LOADERS)}")
    check_folder(root)
    protocol = LOADERS[name](root)
    for split, dataset, published in zip(
        ("training", "test"), (protocol.train, protocol.test), PUBLISHED[name], strict=True
    ):
        seen = len(dataset.records), len({record.label for record in dataset.records})
        if not dataset.records:
            raise InputError(f"{printable_path(str(root))}: its lists name no {split} image of {name}")
        if seen != published:
            logger.warning(
                "%s: the %s split has %d images of %d classes, published are %d of %d: "
                "figures are not comparable with the papers'",
                *(name, split, *seen, *published),
            )
    return protocol
