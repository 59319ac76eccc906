"""Benchmark protocols: readers of the official downloads, with their splits and K of Recall@K."""

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from index.errors import InputError, missing_imports_as_dependency_errors
from index.evaluation.metrics import K_SETS
from index.sources.folder_walk import check_folder
from index.text import printable_path, valid_text
from training.data.datasets import Dataset, Record, cap_classes, list_dataset

logger = logging.getLogger(__name__)
LOOKED_FOR = 16  # listed images that are tried before saying that nothing was unpacked

Splits: TypeAlias = tuple[Dataset, Dataset]
"""Training and test split of a benchmark, as the papers use it."""


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

    def read_rows(
        self, name: str, kinds: tuple[Callable[[str], Any], ...], *, form: str, header: int = 0
    ) -> list[tuple[Any, ...]]:
        """Columns of every line that is not blank, separated by white space and converted by `kinds`.

        Bytes that are not UTF-8 are kept, as in file names.

        Args:
            form: of a line, for the message; with `…` at its end a line may have more columns.
            header: number of the header line, which is `form`; 0: no header.
        """
        shown, rows = printable_path(str(self.folder / name)), []
        try:
            text = (self.folder / name).read_text(encoding="utf-8-sig", errors="surrogateescape")
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror}); it comes with {self.archive}", at=shown) from error
        for number, line in enumerate(text.split("\n"), start=1):
            columns = line.split()
            if not columns or number < header or (number == header and columns == form.split()):
                continue
            try:
                if number == header or "\0" in line:
                    raise ValueError(line)
                rows.append(tuple(kind(word) for kind, word in zip(kinds, columns, strict=not form.endswith("…"))))
            except ValueError as error:
                expected = f"the header `{form}`" if number == header else f"`{form}`"
                seen = printable_path(line.strip()[:80])
                raise InputError(f"expected {expected}, found `{seen}`", at=shown, where=f"line {number}") from error
        return rows

    def locate(self, names: Sequence[str], *, places: Sequence[str] = ("",), archive: str | None = None) -> Path:
        """The first of `places` that has some of the listed images, by a few names spread over the list."""
        tried = names[:: -(-len(names) // LOOKED_FOR) or 1]
        for place in places:
            if not tried or any((self.folder / place / name).is_file() for name in tried):
                return self.folder / place
        raise InputError(
            f"{printable_path(self.folder)}: the images are not unpacked; of {len(tried)} listed images that were "
            f"looked for there is missing, the first is {printable_path(str(Path(places[0], tried[0])))}; unpack "
            f"{archive or self.archive}"
        )


def _split_by_class(listed: Sequence[tuple[Record, int]], *, trained: int) -> Splits:
    """Classes up to the number `trained` train, the others are searched."""
    train = tuple(record for record, number in listed if number <= trained)
    return Dataset(train), Dataset(tuple(record for record, number in listed if number > trained))


def _read_status(text: str) -> str:
    if text not in ("train", "query", "gallery"):
        raise ValueError(text)
    return text


def load_in_shop(root: Path) -> Splits:
    """Official list; a label is the item_id, and the test split has queries and gallery in the list's order."""
    top, archive = "In-shop Clothes Retrieval Benchmark", "the In-shop Clothes Retrieval Benchmark of DeepFashion"
    tops = [f"{place}{part}" for place in (f"{top}/", "") for part in ("Eval", "Anno")]
    name, form = "list_eval_partition.txt", "image_name item_id evaluation_status"
    lists = _Download.find(root, tops=[*tops, top], marker=name, archive=archive)
    rows = lists.read_rows(name, (str, str, _read_status), form=form, header=2)
    folder = lists.folder.parent if lists.folder.name in ("Eval", "Anno") else lists.folder
    images = _Download(folder, f"Img/img.zip of {archive}")
    base = {
        status: images.locate([name for name, _, seen in rows if seen == status], places=("", "Img", "img"))
        for status in ("train", "query", "gallery")
    }
    listed = [(Record(base[status] / name, valid_text(item)), status) for name, item, status in rows]
    train = tuple(record for record, status in listed if status == "train")
    test = tuple(record for record, status in listed if status != "train")
    return Dataset(train), Dataset(test, is_gallery=tuple(s == "gallery" for _, s in listed if s != "train"))


def load_sop(root: Path) -> Splits:
    """Official lists; a label is the product's class_id."""
    archive, form = "Stanford_Online_Products.zip", "image_id class_id super_class_id path"
    download = _Download.find(root, tops=["Stanford_Online_Products"], marker="Ebay_train.txt", archive=archive)

    def read_split(name: str) -> Dataset:
        rows = download.read_rows(name, (int, int, int, str), form=form, header=1)
        base = download.locate([image for *_, image in rows])
        return Dataset(tuple(Record(base / image, str(number)) for _, number, _, image in rows))

    return read_split("Ebay_train.txt"), read_split("Ebay_test.txt")


CARS_CLASSES = 98
# what scipy's reader raises, beside its own MatReadError, when files are cut or overwritten at random
_DAMAGE = (OSError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error)


def load_cars(root: Path) -> Splits:
    """car_ims with cars_annos.mat or, of the same photos, cars_train and cars_test with their development kit."""
    if not any((folder / "cars_train").is_dir() for folder in (root, root / "stanford_cars")):
        archive = "the download of Cars-196, beside car_ims.tgz,"
        folder = _Download.find(root, marker="cars_annos.mat", archive=archive).folder
        names = _read_variable(folder / "cars_annos.mat", "class_names")
        listed = list(_read_annotations(folder / "cars_annos.mat", names, field="relative_im_path", images=folder))
        return _split_by_class(listed, trained=CARS_CLASSES)
    marker, test = "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"
    folder = _Download.find(root, tops=["stanford_cars"], marker=marker, archive="car_devkit.tgz").folder
    names = _read_variable(folder / "devkit/cars_meta.mat", "class_names")
    # a download of its own: the kit's list of test images has no classes
    tests = _Download.find(folder, tops=["devkit"], marker=test, archive="the page of Cars-196").folder
    listed = [
        *_read_annotations(folder / marker, names, field="fname", images=folder / "cars_train"),
        *_read_annotations(tests / test, names, field="fname", images=folder / "cars_test"),
    ]
    return _split_by_class(listed, trained=CARS_CLASSES)


def _read_annotations(path: Path, names: Any, *, field: str, images: Path) -> Iterator[tuple[Record, int]]:
    annotations = _read_variable(path, "annotations")
    if not {field, "class"} <= set(annotations.dtype.names or ()):
        raise InputError(f"expected annotations with {field} and class, found {annotations.dtype.names}", at=path)
    files = [str(file) for file in annotations[field]]
    base = _Download(images, "car_ims.tgz, or cars_train.tgz and cars_test.tgz").locate(files)
    for row, (file, number) in enumerate(zip(files, annotations["class"], strict=True), start=1):
        if not isinstance(number, int | np.integer) or not 1 <= number <= len(names):
            raise InputError(f"expected a class in 1..{len(names)}, found {number}", at=path, where=f"annotation {row}")
        yield Record(base / file, str(names[number - 1])), int(number)


def _read_variable(path: Path, name: str) -> Any:
    """A variable of a MATLAB file, (N,)."""
    if not path.is_file():
        raise InputError("no such file; unpack car_devkit.tgz", at=path)
    with missing_imports_as_dependency_errors("reading Cars-196"):
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    try:
        variables = loadmat(path, squeeze_me=True, variable_names=[name])
    except (*_DAMAGE, MatReadError) as error:
        raise InputError(f"not a readable MATLAB file: {error}; download it again", at=path) from error
    if name not in variables:
        raise InputError(f"expected a variable {name} in it; is it the file of the official download?", at=path)
    return np.atleast_1d(variables[name])


def load_cub(root: Path) -> Splits:
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
    return _split_by_class(listed, trained=100)


# The paper does not say which 300: a draw over both search engines and every query of a class, the same everywhere.
# The first 300 of the lists would come from one engine, and mostly from one query.
WEB_PER_CLASS, WEB_SEED = 300, 0


def load_webvision(root: Path) -> Splits:
    """Subset of the SPA paper: web images with the labels of the searches that found them.

    Classes 1-100 train, at most 300 images each; the validation images of classes 101-200 are searched. A label is the
    class's WordNet id, the first word of its line in info/synsets.txt. The paper takes WebVision 2.0 (5,000 classes);
    1.0 (1,000 classes) unpacks in the same way and is taken as well.
    """
    download = _Download.find(root, tops=["webvision"], marker="info/synsets.txt", archive="info.tar of WebVision")
    synsets = [name for (name,) in download.read_rows("info/synsets.txt", (str,), form="wordnet_id words…")][:200]
    if len(set(synsets)) < 200:
        raise InputError(
            f"{printable_path(str(download.folder / 'info/synsets.txt'))}: expected at least 200 different classes, "
            f"one a line, found {len(set(synsets))}; unpack {download.archive} again"
        )

    def list_split(names: Sequence[str], classes: range, *, places: Sequence[str], archive: str) -> list[Record]:
        form = "image_name class_number"
        rows = [row for name in names for row in download.read_rows(name, (str, int), form=form) if row[1] in classes]
        base = download.locate([name for name, _ in rows], places=places, archive=archive)
        return [Record(base / name, synsets[number]) for name, number in rows]

    train = list_split(
        ("info/train_filelist_google.txt", "info/train_filelist_flickr.txt"),
        range(100),
        places=("", "train", "train_images_256"),
        archive="WebVision's training images",
    )
    test = list_split(
        ["val_filelist.txt" if (download.folder / "val_filelist.txt").is_file() else "info/val_filelist.txt"],
        range(100, 200),
        places=("val_images_256", "val_images_resized", "val_images", "val", ""),
        archive="WebVision's validation images",
    )
    return Dataset(tuple(cap_classes(train, max_per_class=WEB_PER_CLASS, seed=WEB_SEED))), Dataset(tuple(test))


TINY_TRAINING_IMAGES = 300  # a class; the paper's 29,707 images of 100 classes
TINY_TEST_IMAGES = 74  # a class; its 7,382 images of 100 others


def load_tiny_imagenet(root: Path) -> Splits:
    """Official download, or folders `train` and `test` of class folders, which are taken as they are.

    Of the download, the first 100 classes of wnids.txt train with 300 images each and the others are searched with 74
    each, the first by name from the train folder. A label is the class's WordNet id.
    """
    for folder in (root, root / "tiny-imagenet"):
        searched = folder / "test"  # that of the download has one folder, of unlabelled images
        entries = list(searched.iterdir()) if searched.is_dir() else []
        if (folder / "train").is_dir() and any(one.is_dir() and one.name != "images" for one in entries):
            return list_dataset(folder / "train"), list_dataset(folder / "test")
    archive = "tiny-imagenet-200.zip"
    download = _Download.find(root, tops=["tiny-imagenet-200"], marker="wnids.txt", archive=archive)
    records: tuple[list[Record], list[Record]] = ([], [])
    for number, (name,) in enumerate(download.read_rows("wnids.txt", (str,), form="wordnet_id")):
        folder = download.folder / "train" / name / "images"
        images, is_test = sorted(folder.glob("*.JPEG")), number >= 100
        if not images:
            raise InputError(f"no images (*.JPEG) of the class that wnids.txt lists; unpack {archive} again", at=folder)
        most = TINY_TEST_IMAGES if is_test else TINY_TRAINING_IMAGES
        records[is_test].extend(Record(image, name) for image in images[:most])
    return Dataset(tuple(records[0])), Dataset(tuple(records[1]))


LOADERS: dict[str, Callable[[Path], Splits]] = {
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


def load_protocol(name: str, root: Path) -> Splits:
    """Splits of a benchmark, listed without decoding; `root` is the unpacked archive or the folder around it."""
    if name not in LOADERS:
        raise InputError(f"no such benchmark: {name!r}; expected one of {', '.join(LOADERS)}")
    check_folder(root)
    train, test = LOADERS[name](root)
    for split, dataset, published in zip(("training", "test"), (train, test), PUBLISHED[name], strict=True):
        seen = len(dataset.records), len({record.label for record in dataset.records})
        if not dataset.records:
            raise InputError(f"its lists name no {split} image of {name}", at=root)
        if seen != published:
            logger.warning(
                "%s: the %s split has %d images of %d classes, published are %d of %d: "
                "figures are not comparable with the papers'",
                *(name, split, *seen, *published),
            )
    return train, replace(test, ks=K_SETS[name])
