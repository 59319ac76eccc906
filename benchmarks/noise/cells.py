"""The trainings of a grid by what they are made of, and where their files lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import kept
from benchmarks.noise.shapes import FULL, name_shape
from training.options.config import TrainConfig
from training.options.losses import CLASS_WHITENED, NEEDS_CONFIDENCES
from training.options.resolve import resolve

FILTERED = "-filtered"  # the suffix of methods that train without the samples of low confidence
CLEAN = "clean"
GUIDED = "-guided"  # the suffix of ProcSim with language guidance from the class names (class_words.py)
RECIPE = "default"  # the method that is `retrieval train` as it comes: its own loss, start, confidences and steps
OMEGA = 1.0  # of the guidance, unless it is tuned
MOST_CHARACTERS = 120  # of the readable part of a name; several parts and a suffix must stay below 255


@dataclass(frozen=True, slots=True)
class LabelSet:
    """One noisy labelling of one dataset, for which phase 1 runs once.

    Attributes:
        noise: `clean` or `KIND:P` as `retrieval train --label-noise` takes it.
        seed: of the noise, and of all that is trained on it.
        fold: (number, count) of a part of the training data that judges, the rest trains (`hold_out_for_tuning`);
            None for the dataset's own training and test parts.
        phase1: options of the confidence module that differ from the paper's recipe.
        shape: `full`, or `longtail:FACTOR` for a part of the training images before the noise (`shapes.py`), whose
            classes' order the seed draws.
    """

    dataset: str
    noise: str
    seed: int
    fold: tuple[int, int] | None = None
    phase1: Mapping[str, Any] = field(default_factory=dict)
    shape: str = FULL

    @property
    def name(self) -> str:
        """Of its files: readable, and unlike that of any other."""
        fold = [] if self.fold is None else ["tuning" if self.fold[1] == 1 else "tuning{}of{}".format(*self.fold)]
        parts = [self.dataset, self.noise, f"seed{self.seed}", *name_shape(self.shape), *fold]
        return _unique_name(parts, self.phase1)


@dataclass(frozen=True, slots=True)
class Cell:
    """One training and its scores.

    Attributes:
        method: as `retrieval train --method`, with `-filtered` for the variant without noise, or `default` for
            `retrieval train` as it comes; `procsim` is without language guidance, `procsim-guided` with.
        settings: options of loss and embedding that differ from the paper's recipe (of any kind, from the default
            recipe, for `default`), by field name.
        curve: epochs after which Recall@1 is noted as well.
    """

    labels: LabelSet
    method: str
    width: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    curve: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.config()  # refuses settings that the method does not use

    @property
    def name(self) -> str:
        """Of its files."""
        parts = [self.labels.name, self.method, f"{self.width}d"]
        return _unique_name(parts, {**self.settings, "curve": self.curve})

    def config(self) -> TrainConfig:
        """All options of the training: the default recipe's or the paper's, and the settings."""
        given = {"seed": self.labels.seed, "embedding_dim": self.width, **self.settings}
        if self.method == RECIPE:
            return resolve(weights="none", **given)
        if self.is_guided:
            # The grid makes the similarities itself, so that this file is never read.
            given = {"omega": OMEGA, "guidance": "class-names.npz", "select": "trained", **given}
        return resolve("paper", weights="none", method=self.base_method, **given)

    @property
    def base_method(self) -> str:
        """The method without the suffix of a variant."""
        return base_method(self.method)

    @property
    def is_guided(self) -> bool:
        """Whether the class names guide it."""
        return self.method.endswith(GUIDED)

    @property
    def needs_beliefs(self) -> bool:
        """Whether labels must have been judged by leave-one-out."""
        if self.needs_confidences:
            return False
        return self.method == CLASS_WHITENED or self.method.endswith(FILTERED) or self.config().needs_beliefs

    @property
    def needs_confidences(self) -> bool:
        """Whether phase 1 must have run, where labels are not believed by leave-one-out."""
        if self.settings.get("confidences") == "leave-one-out":
            return False
        return self.method.endswith(FILTERED) or self.base_method in NEEDS_CONFIDENCES


def base_method(method: str) -> str:
    """A method's name for `retrieval train`, without the suffix of a variant."""
    return method.removesuffix(FILTERED).removesuffix(GUIDED)


def file_name(*parts: str) -> str:
    """Parts as one readable file name, cut to what file systems take."""
    name = "_".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts)
    return name[:MOST_CHARACTERS]


def short_name(dataset: str) -> str:
    """A dataset's name with the last parts of its paths: `folder:train:test`.

    >>> short_name("cub-200-2011:/data/CUB_200_2011"), short_name("tiny-imagenet")
    ('cub-200-2011:CUB_200_2011', 'tiny-imagenet')
    """
    kind, *paths = dataset.split(":")
    return ":".join([kind, *(Path(path).name for path in paths)])


def result_name(kind: str, dataset: str, *parts: str) -> str:
    """The file name of a table or picture; a few digits tell datasets apart that share their short name."""
    name = file_name(kind, short_name(dataset), *parts)
    if short_name(dataset) == dataset:
        return name
    return f"{name}_{hashlib.sha256(dataset.encode()).hexdigest()[:6]}"


def _unique_name(parts: Sequence[str], options: Mapping[str, Any]) -> str:
    return f"{file_name(*parts)}_{digest([list(parts), dict(options)])}"


def digest(value: Any) -> str:
    """Ten digits that tell JSON values apart."""
    return kept.digest(value, digits=10)


@dataclass(frozen=True, slots=True)
class GridFolder:
    """Where a grid keeps everything, and the class hierarchy that semantic noise walks."""

    path: Path
    hierarchy: str | None = None

    def features(self, dataset: str) -> Path:
        """Folder of a dataset's features."""
        return self.path / "features" / _unique_name([dataset], {})

    def confidences(self, labels: LabelSet) -> Path:
        """(N, C) float32 of phase 1."""
        return self.path / "confidences" / f"{labels.name}.npy"

    def report(self, labels: LabelSet) -> Path:
        """The JSON report of phase 1; it says that the confidences are whole."""
        return self.confidences(labels).with_suffix(".json")

    def beliefs(self, labels: LabelSet) -> Path:
        """(N, C) float32 by leave-one-out, which no option of phase 1 changes."""
        return self.path / "beliefs" / f"{replace(labels, phase1={}).name}.npy"

    def cell(self, cell: Cell) -> Path:
        """The JSON record of a cell; the per-query hits stand beside it."""
        return self.path / "cells" / f"{cell.name}.json"

    @property
    def results(self) -> Path:
        """Folder of tables and pictures."""
        return self.path / "results"

    def read(self, cell: Cell) -> dict[str, Any]:
        """The record of a finished cell, with `hits`, (Q,) bool at K=1."""
        path = self.cell(cell)
        return {**json.loads(path.read_text()), "hits": np.load(path.with_suffix(".npy"))}
