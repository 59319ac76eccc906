"""Which images of a dataset train and which are searched, by the dataset's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.record import find_photos, unpack_labels, unpack_shared, unpack_tiny_imagenet
from index.errors import InputError
from training.data.datasets import Dataset, Record, list_dataset
from training.data.protocols import Splits, load_protocol

NO_CLOTHES = ("not-sure", "other", "skip")  # folders of photos that their owners could not name
SEEN_TRAINING_SHARE = 0.7
CIFAR_STEP = 5  # of 10,000 pictures 2,000 train, 2,000 are searched
CARS_TUNE = 52  # models by the first nine makes, of the 98 models that train


def list_split(name: str, *, work: Path) -> Splits:
    """The images of a dataset by name.

    Args:
        name: of `SPLITS`, `PROTOCOL:FOLDER` for a benchmark's official download, or `folder:TRAIN:TEST`.
        work: folder for unpacked archives.
    """
    if name in SPLITS:
        return SPLITS[name](work / "images")
    protocol, _, rest = name.partition(":")
    if protocol == "folder":
        train, _, test = rest.partition(":")
        if not train or not test or Path(train).resolve() == Path(test).resolve():
            raise InputError(f"{name}: expected folder:TRAIN:TEST, two folders of class folders, not the same")
        return list_dataset(Path(train)), list_dataset(Path(test))
    return load_protocol(protocol, Path(rest))


def _tiny_imagenet(images: Path) -> Splits:
    train, test = (list_dataset(folder) for folder in unpack_tiny_imagenet(images))
    return train, test


def _tiny_imagenet_tune(images: Path) -> Splits:
    records = _tiny_imagenet(images)[0].records
    trains = _every_other({record.label for record in records})
    return _part(records, [record.label in trains for record in records])


def list_clothing() -> list[Record]:
    """The clothing photos whose owners could name what they show."""
    return [record for record in list_dataset(find_photos()).records if record.label not in NO_CLOTHES]


def _clothing_disjoint(_: Path) -> Splits:
    records = list_clothing()
    trains = _every_other({record.label for record in records})
    return _part(records, [record.label in trains for record in records])


def _clothing_seen(_: Path) -> Splits:
    records = list_clothing()
    return _part(records, _take_seventy(records))


def _cars(images: Path) -> Splits:
    folder = unpack_shared("cars.tar", images) / "cars"
    return list_dataset(folder / "train"), list_dataset(folder / "test")


def _cars_tune(images: Path) -> Splits:
    records = list_dataset(unpack_shared("cars.tar", images) / "cars" / "train").records
    return _part(records, [int(record.label[:3]) <= CARS_TUNE for record in records])


def _cars_seen(images: Path) -> Splits:
    records = list_dataset(unpack_shared("cars.tar", images) / "cars" / "train").records
    return _part(records, _take_seventy(records))


def _groceries(images: Path) -> dict[str, list[Record]]:
    """The photos of the official parts `train`, `val` and `test`."""
    folder, rows = unpack_labels("groceries", images)
    parts: dict[str, list[Record]] = {"train": [], "val": [], "test": []}
    for row in rows:
        parts[row["split"]].append(Record(folder / row["path"], row["label"]))
    return parts


def _groceries_seen(images: Path) -> Splits:
    parts = _groceries(images)
    train = [*parts["train"], *parts["val"]]
    return _ask_gallery(train, gallery=train, queries=parts["test"])


def _groceries_disjoint(images: Path) -> Splits:
    return _split_groceries(_groceries(images))


def _groceries_tune(images: Path) -> Splits:
    parts = _groceries(images)
    trains = _every_other({record.label for part in parts.values() for record in part})
    return _split_groceries({name: [one for one in part if one.label in trains] for name, part in parts.items()})


def _split_groceries(parts: dict[str, list[Record]]) -> Splits:
    every = [record for part in parts.values() for record in part]
    trains = _every_other({record.label for record in every})
    gallery, queries = ([one for one in parts[part] if one.label not in trains] for part in ("train", "test"))
    return _ask_gallery([one for one in every if one.label in trains], gallery=gallery, queries=queries)


def _cifar_n_worse(images: Path) -> Splits:
    folder, rows = unpack_labels("cifar-n", images)
    train, test = rows[::CIFAR_STEP], rows[1::CIFAR_STEP]
    return (
        Dataset(tuple(Record(folder / row["path"], row["worse"]) for row in train)),
        Dataset(tuple(Record(folder / row["path"], row["clean"]) for row in test)),
    )


def _ask_gallery(train: Sequence[Record], *, gallery: Sequence[Record], queries: Sequence[Record]) -> Splits:
    """Queries that search a gallery and are no members of it, so that no photo finds another shot of its group."""
    is_gallery = (*[True] * len(gallery), *[False] * len(queries))
    return Dataset(tuple(train)), Dataset((*gallery, *queries), is_gallery=is_gallery)


def _every_other(labels: Iterable[str]) -> set[str]:
    """The first, third … label in the order of their names."""
    return set(sorted(labels)[::2])


def _part(records: Sequence[Record], chosen: Sequence[bool] | np.ndarray) -> Splits:
    train, test = (
        Dataset(tuple(one for one, taken in zip(records, chosen, strict=True) if taken == part))
        for part in (True, False)
    )
    return train, test


def _take_seventy(records: Sequence[Record]) -> np.ndarray:
    """(N,) bool: 70 % of every label's images."""
    labels = np.array([record.label for record in records])
    taken, generator = np.zeros(len(labels), dtype=bool), np.random.default_rng(0)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        taken[rows[: round(SEEN_TRAINING_SHARE * len(rows))]] = True
    return taken


SPLITS: Mapping[str, Callable[[Path], Splits]] = {
    "tiny-imagenet": _tiny_imagenet,
    "clothing-disjoint": _clothing_disjoint,
    "cars": _cars,
    "groceries-disjoint": _groceries_disjoint,
    "clothing-seen": _clothing_seen,
    "cars-seen": _cars_seen,
    "groceries-seen": _groceries_seen,
    "cifar-n-worse": _cifar_n_worse,
    "cars-tune": _cars_tune,
    "groceries-tune": _groceries_tune,
    "tiny-imagenet-tune": _tiny_imagenet_tune,
}
"""Datasets by name. The searched classes are not those that train; with `-seen` they are, in other images.

- `tiny-imagenet` and `cars`: their folders `train` and `test`.
- `clothing-disjoint`: every other folder of clothes trains, the others are searched leave-one-out.
- `groceries-disjoint`: every other class trains; of the others the official test photos query the training photos.
- `clothing-seen` and `cars-seen`: 70 % of every folder train, the others are searched leave-one-out.
- `groceries-seen`: the official test photos query the training photos, official `val` among them.
- `cifar-n-worse`: labels of one person each, 40 % of them wrong, train; other pictures are searched by right labels.
- `cars-tune`, `groceries-tune`, `tiny-imagenet-tune`: parts of the training classes of `cars`, `groceries-disjoint` and
  `tiny-imagenet`, to choose options.
"""
