"""The images on which a precision is measured: of many labels, several of each, so that they can find each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.precision import CALIBRATED, LEAST_IMAGES, MEASURED, LabelledPixels
from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.text import printable_path
from training.data.datasets import list_dataset
from training.run.run_folder import RunFolder

_OF_A_LABEL = 20


@dataclass(frozen=True, slots=True)
class LabelledPaths:
    """Where images lie and what their labels are; `place` is what people call all of them."""

    place: Path
    images: Sequence[tuple[Path, str]]

    @classmethod
    def of_run(cls, run: RunFolder) -> LabelledPaths:
        """Those that a run trained on."""
        return cls(run.path, [(image.path, image.used) for image in run.read_labels() or []])

    @classmethod
    def of_folder(cls, place: Path) -> LabelledPaths:
        """Those of a folder of folders, or a table, as `retrieval train` reads it.

        Raises:
            InputError: it cannot be read.
        """
        return cls(place, [(record.path, record.label) for record in list_dataset(place).records])

    def draw(self, preprocess: PreprocessConfig, *, workers: int) -> LabelledPixels:
        """Up to `CALIBRATED` + `MEASURED` readable images, always the same ones, in an order that mixes labels.

        Raises:
            InputError: they are too few to measure anything on, or have fewer than two labels.
        """
        chosen = list(self._choose())
        with ThreadPoolExecutor(workers) as pool:
            read = list(pool.map(lambda image: _read(image[0], preprocess), chosen))
        found = [(pixels, label) for pixels, (_, label) in zip(read, chosen, strict=True) if pixels is not None]
        labels = sorted({label for _, label in found})
        if len(found) < 2 * LEAST_IMAGES or len(labels) < 2:
            raise InputError(
                f"{printable_path(str(self.place))}: what a precision costs is measured on at least "
                f"{2 * LEAST_IMAGES} readable images of two or more labels; found {len(found)} of {len(labels)}: give "
                "others by --images"
            )
        numbers = {label: number for number, label in enumerate(labels)}
        return LabelledPixels(
            np.stack([pixels for pixels, _ in found]),
            np.array([numbers[label] for _, label in found], dtype=np.int64),
        )

    def _choose(self) -> Iterator[tuple[Path, str]]:
        generator = np.random.default_rng(0)
        by_label: dict[str, list[tuple[Path, str]]] = {}
        for image in self.images:
            by_label.setdefault(image[1], []).append(image)
        chosen: list[tuple[Path, str]] = []
        labels = sorted(by_label)
        most = max(_OF_A_LABEL, -(-(CALIBRATED + MEASURED) // max(len(labels), 1)))
        for place in generator.permutation(len(labels)).tolist():
            images = by_label[labels[place]]
            chosen += [images[row] for row in generator.permutation(len(images))[:most].tolist()]
            if len(chosen) >= CALIBRATED + MEASURED:
                break
        for row in generator.permutation(len(chosen))[: CALIBRATED + MEASURED].tolist():
            yield chosen[row]


def _read(path: Path, preprocess: PreprocessConfig) -> Pixels | None:
    try:
        return preprocess_image(read_image(path, target_side=preprocess.resize).image, preprocess)
    except ImageError:
        return None
