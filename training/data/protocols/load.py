"""Benchmarks by name, read from their official downloads as these unpack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from index.errors import InputError
from index.sources.folder_walk import check_folder
from index.text import printable_path
from training.data.datasets import Dataset
from training.data.protocols.cars import load_cars
from training.data.protocols.cub import load_cub
from training.data.protocols.in_shop import load_in_shop
from training.data.protocols.protocol import Protocol
from training.data.protocols.sop import load_sop
from training.data.protocols.tiny_imagenet import load_tiny_imagenet
from training.data.protocols.webvision import load_webvision

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

    Raises:
        InputError: no such benchmark, a list that is missing or cannot be read, or images that are not unpacked.
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
