"""Stanford Online Products: the authors' own split of 22,634 products."""

from __future__ import annotations

from pathlib import Path

from training.data.datasets import Dataset, Record
from training.data.protocols.download import find_download, locate_images, read_rows
from training.data.protocols.protocol import Protocol, as_dataset

ARCHIVE = "Stanford_Online_Products.zip"
FORM = "image_id class_id super_class_id path"


def load_sop(root: Path) -> Protocol:
    """The official lists; a label is the product's class_id."""
    folder = find_download(root, tops=["Stanford_Online_Products"], marker="Ebay_train.txt", archive=ARCHIVE)
    train, test = _read_split(folder / "Ebay_train.txt"), _read_split(folder / "Ebay_test.txt")
    return Protocol("sop", train, test)


def _read_split(path: Path) -> Dataset:
    rows = list(read_rows(path, (int, int, int, str), form=FORM, archive=ARCHIVE, header=True))
    base = locate_images(path.parent, places=[""], names=[name for *_, name in rows], archive=ARCHIVE)
    return as_dataset(Record(base / name, str(number)) for _, number, _, name in rows)
