"""What a benchmark's protocol fixes: which images train, which are searched, and the K of its Recall@K."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from index.evaluation.metrics import K_SETS
from training.data.datasets import Dataset, Record


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
