"""Labels that a file of `path,label` gives to the items of any source, whatever these say themselves."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from index.catalog.reader import Catalog
from index.errors import InputError
from index.sources.given_labels import read_labels
from index.sources.items import FoundItem
from index.text import printable_path


class AssignedLabels:
    """The labels of a file, by real path; an item without a row is unlabelled.

    Args:
        labels_file: CSV or Parquet with the columns path,label; paths relative to it, or absolute.
    """

    def __init__(self, labels_file: Path) -> None:
        self._file = labels_file
        self._labels = {_real(path): label for path, label in read_labels(labels_file).items()}
        self._used = 0

    def label(self, item: FoundItem, location: str) -> FoundItem:
        """The item, at its absolute location, with its label."""
        label = self._labels.get(_real(location))
        self._used += label is not None
        return replace(item, label=label)

    def check_used(self) -> None:
        """Raise InputError where no item asked for had a label."""
        if not self._used:
            raise InputError(
                f"{printable_path(str(self._file))}: none of its {len(self._labels)} labelled paths is an image of "
                "the gallery's sources; paths are relative to the label file's own folder, or absolute"
            )


def _real(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder), name)


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def find_assigned(catalog: Catalog) -> AssignedLabels | None:
    """The labels that a gallery was built with, as they are now."""
    labels_file = catalog.labels_file()
    if labels_file is None:
        return None
    if not labels_file.is_file():
        raise InputError(
            f"{printable_path(str(labels_file))}: the label file that the gallery was built with is gone; put it "
            "back, or run `retrieval index build` with another one, or without --labels"
        )
    return AssignedLabels(labels_file)
