"""A grid of trainings on frozen features: one JSON file each, trained in parallel processes, continued after a stop.

The confidence module of the SPA paper trains once for every noisy label set; all trainings on that set read its
confidences.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common.record import digest, save_array, write_with_record
from benchmarks.noise.features import FeatureSet, load_features
from index.commands.console import progress_bars
from training.confidence.confidences import LabelConfidences, confidences_of_module, estimate_posteriors
from training.data.label_noise import add_label_noise
from training.head.embedding_heads import Head
from training.head.untrained import LabelledFeatures, count_directions, fit_rival
from training.options.config import USUAL_L2_SP, DataConfig, HeadConfig, LabelNoise, TrainConfig
from training.options.losses import NEEDS_CONFIDENCES, RIVALS, UNTRAINED_METHODS, WCCN
from training.options.machine import resolve_device
from training.options.resolve import recipe_values, resolve
from training.run.fit import HeadPlan, HeadTraining
from training.run.label_confidences import fit_confidence
from training.run.phases import PhaseContext
from training.run.searches import ValidationSet, embed_features

CLEAN = "clean"
RECIPE = "default"  # the method that is `retrieval train` with its default options
MOST_CHARACTERS = 120  # of the readable part of a file name


@dataclass(frozen=True, slots=True)
class LabelSet:
    """One noisy labelling of one dataset; `noise` is `clean` or as `retrieval train --label-noise` takes it."""

    dataset: str
    noise: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its files."""
        parts = (self.dataset, self.noise, f"seed{self.seed}")
        return f"{file_name(*parts)}_{digest(parts)}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One training and its scores.

    Attributes:
        method: as `retrieval train --method`, or `default` for `retrieval train` with its default options.
        settings: options by field name, those of the recipe among them: another version of it is another cell.
    """

    labels: LabelSet
    method: str
    width: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its files."""
        parts = (self.labels.name, self.method, f"{self.width}d")
        return f"{file_name(*parts)}_{digest([parts, dict(self.settings)])}"

    def config(self) -> TrainConfig:
        """All options of the training."""
        given = {"seed": self.labels.seed, "embedding_dim": self.width, **self.settings}
        if self.method == RECIPE:
            return resolve(weights="none", frozen=True, **given)
        return resolve("spa-paper", weights="none", method=self.method, **given)

    @property
    def needs_module(self) -> bool:
        """Whether it reads the confidences of the SPA paper's module."""
        return self.method in NEEDS_CONFIDENCES

    @property
    def needs_leave_one_out(self) -> bool:
        """Whether it reads leave-one-out confidences."""
        return not self.needs_module and (self.method == WCCN or self.config().needs_confidences)


def list_cells(
    method: str, dataset: str, noise: str, width: int, *, seeds: Sequence[int], options: Mapping[str, Any]
) -> list[Cell]:
    """The trainings of a line of a table, one a seed; `options` stand in place of the recipe's.

    A method that reads no labels is the same under any noise and seed.
    """
    if method in UNTRAINED_METHODS:
        noise, seeds = CLEAN, (0,)
    values: dict[str, Any] = {}
    if method not in RIVALS:
        values = recipe_values(RECIPE) if method == RECIPE else recipe_values("spa-paper", method=method)
        if method == "prism":  # its authors give it the true share of wrong labels
            values["prism_rate"] = 0.0 if noise == CLEAN else float(noise.partition(":")[2])
        values = {name: value for name, value in (values | dict(options)).items() if value is not None}
    return [Cell(LabelSet(dataset, noise, seed), method, width, values) for seed in seeds]


def file_name(*parts: str) -> str:
    """Parts as one readable file name, cut to a length that file systems take."""
    name = "_".join("".join(c if c.isalnum() or c in ".-" else "-" for c in part) for part in parts)
    return name[:MOST_CHARACTERS]


def short_name(dataset: str) -> str:
    """A dataset's name with the last parts of its paths.

    >>> short_name("cub-200-2011:/data/CUB_200_2011"), short_name("tiny-imagenet")
    ('cub-200-2011:CUB_200_2011', 'tiny-imagenet')
    """
    kind, *paths = dataset.split(":")
    return ":".join([kind, *(Path(path).name for path in paths)])


def name_set(dataset: str, *parts: str) -> str:
    """A file name for results on a dataset; a digest tells datasets apart that share their short name."""
    short = short_name(dataset)
    own = [short] if short == dataset else [short, digest(dataset)]
    return file_name(*own, *parts)


@dataclass(frozen=True, slots=True)
class GridFolder:
    """The files of a grid."""

    path: Path

    def features(self, dataset: str) -> Path:
        return self.path / "features" / name_set(dataset)

    def module_confidences(self, labels: LabelSet) -> Path:
        """(N, C) float32 of the SPA paper's module."""
        return self.path / "module" / f"{labels.name}.npy"

    def leave_one_out(self, labels: LabelSet) -> Path:
        """(N, C) float32."""
        return self.path / "leave-one-out" / f"{labels.name}.npy"

    def cell(self, cell: Cell) -> Path:
        """The JSON record of a training; the hits of each query are in the `.npy` beside it."""
        return self.path / "cells" / f"{cell.name}.json"

    def read(self, cell: Cell) -> dict[str, Any]:
        """The record of a finished training, with `hits`, (Q,) bool at K=1."""
        path = self.cell(cell)
        return {**json.loads(path.read_text()), "hits": np.load(path.with_suffix(".npy"))}


def run_cells(folder: GridFolder, cells: Sequence[Cell], *, workers: int) -> None:
    """Run the trainings that have no record yet, confidences of their label sets first; features must exist."""
    waiting = {cell.name: cell for cell in cells if not folder.cell(cell).exists()}.values()
    sets = {cell.labels.name: cell.labels for cell in waiting if cell.needs_module}.values()
    missing = [one for one in sets if not folder.module_confidences(one).exists()]
    run_parallel(fit_module, [(folder, one) for one in missing], "confidence modules", workers=workers)
    sets = {cell.labels.name: cell.labels for cell in waiting if cell.needs_leave_one_out}.values()
    missing = [one for one in sets if not folder.leave_one_out(one).exists()]
    run_parallel(leave_one_out, [(folder, one) for one in missing], "leave-one-out", workers=workers)
    run_parallel(run_cell, [(folder, cell) for cell in waiting], "trainings", workers=workers)


def run_parallel(task: Callable[..., None], arguments: Sequence[tuple[Any, ...]], what: str, *, workers: int) -> None:
    """Call the task with each of the arguments, in processes of one thread each; the first error ends all."""
    with progress_bars() as begin:
        progress = begin(what, unit="cells")
        if workers == 1:
            for done, each in enumerate(arguments, start=1):
                task(*each)
                progress(done, len(arguments))
            return
        # OpenMP reads these when a worker imports its libraries.
        with patch.dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE"):
            pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
            try:
                futures = [pool.submit(task, *each) for each in arguments]
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    progress(done, len(arguments))
            finally:
                pool.shutdown(cancel_futures=True)


def load_label_set(folder: GridFolder, labels: LabelSet) -> tuple[FeatureSet, np.ndarray]:
    """The features of a label set, and its (N,) noisy training labels."""
    features = load_features(folder.features(labels.dataset))
    noise = read_noise(labels.noise)
    if noise is None:
        return features, features.train_labels
    parts = {"class_count": len(features.classes), "features": features.train}
    return features, add_label_noise(features.train_labels, noise=noise, **parts, seed=labels.seed)


def read_noise(noise: str) -> LabelNoise | None:
    """The noise by the name that `retrieval train --label-noise` takes; None for clean labels."""
    return None if noise == CLEAN else DataConfig(label_noise=noise).noise


def fit_module(folder: GridFolder, labels: LabelSet) -> None:
    """Train the SPA paper's module on a label set, and write its confidences."""
    features, noisy = load_label_set(folder, labels)
    device = resolve_device("auto")
    train = torch.from_numpy(features.train).to(device)
    module = fit_confidence(
        train,
        torch.from_numpy(noisy).to(device),
        class_count=len(features.classes),
        config=HeadConfig(),
        context=PhaseContext(seed=labels.seed, device=device, checkpoint=None),
    )
    found = confidences_of_module(module, train, torch.from_numpy(noisy).to(device)).by_class
    assert isinstance(found, torch.Tensor)
    save_array(folder.module_confidences(labels), found.cpu().numpy())


def leave_one_out(folder: GridFolder, labels: LabelSet) -> None:
    """Write the leave-one-out confidences of a label set."""
    features, noisy = load_label_set(folder, labels)
    train = torch.from_numpy(features.train)
    found = estimate_posteriors(train, torch.from_numpy(noisy), class_count=len(features.classes), groups=None)
    save_array(folder.leave_one_out(labels), torch.cat([each for _, each in found.blocks()]).numpy())


def run_cell(folder: GridFolder, cell: Cell) -> None:
    """Train one cell and write its record."""
    features, noisy = load_label_set(folder, cell.labels)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, features.ks)
    started = time.perf_counter()
    head = _train(folder, cell, features, noisy)
    seconds = time.perf_counter() - started
    scores = validation.score(embed_features(head, features.test))
    record = {
        "cell": asdict(cell),
        "samples": len(noisy),
        "test_images": len(features.test),
        "seconds": seconds,
        "embedding_dim": head.embedding_dim,
        **scores.to_json(),
    }
    hits = scores.hits[min(features.ks)].astype(bool)
    write_with_record(folder.cell(cell), record, lambda file: np.save(file, hits), suffix=".npy")


def _train(folder: GridFolder, cell: Cell, features: FeatureSet, noisy: np.ndarray) -> Head:
    confidences = _load_confidences(folder, cell, noisy)
    if cell.method in RIVALS:
        width = min(cell.width, count_directions(features.train))
        weights = None if confidences is None else confidences.own.cpu().numpy()
        images = LabelledFeatures(features.train, noisy, weights=weights)
        return fit_rival(cell.method, images, embedding_dim=width)
    device, config = resolve_device("auto"), cell.config()
    labels = torch.from_numpy(noisy).to(device)
    train = torch.from_numpy(features.train).to(device)
    context = PhaseContext(seed=cell.labels.seed, device=device, checkpoint=None)
    plan = HeadPlan(config.head.width, USUAL_L2_SP if config.head.l2_sp is None else config.head.l2_sp)
    count = len(features.classes)
    return HeadTraining(train, labels, count, config, plan, context, confidences).train()


def _load_confidences(folder: GridFolder, cell: Cell, noisy: np.ndarray) -> LabelConfidences | None:
    """The confidences that a training reads; None where it reads none."""
    if not (cell.needs_module or cell.needs_leave_one_out):
        return None
    path = folder.module_confidences(cell.labels) if cell.needs_module else folder.leave_one_out(cell.labels)
    values = torch.from_numpy(np.load(path)).to(resolve_device("auto"))
    labels = torch.from_numpy(noisy).to(values.device)
    return LabelConfidences.of(values, labels, class_count=values.shape[1])
