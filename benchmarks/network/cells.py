"""Trainings of `benchmarks.network`: a run of `retrieval train` each, and the untrained baselines."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.record import digest, keep
from benchmarks.noise.features import load_features, prepare_features
from benchmarks.noise.grid import CLEAN, name_set
from benchmarks.noise.splits import list_split
from index.evaluation.metrics import RetrievalScores
from retrieval_app import train
from training.backbone.extract import Extractor
from training.data.datasets import Dataset, Record
from training.head.untrained import LabelledFeatures, fit_rival, fit_rivals
from training.options.losses import WCCN
from training.options.machine import Machine
from training.options.resolve import resolve_input
from training.run.display import watch_training
from training.run.phases import Watcher
from training.run.prepare import prepare_validation
from training.run.run_folder import RunFolder
from training.run.searches import ValidationSet, embed_features

BACKBONE = "mobilenet_v2"
DEFAULT, FROZEN = "default", "frozen"
_NCA = {"method": "proxy-nca", "nca_scale": 12.0}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    FROZEN: {"frozen": True},
    "proxy-nca posteriors": {**_NCA, "targets": "posteriors"},
    "proxy-anchor": {"method": "proxy-anchor"},
    "proxy-anchor, scale 4": {"method": "proxy-anchor", "alpha": 4.0},
    "proxy-nca": {**_NCA, "targets": "labels"},
    "prism": {**_NCA, "method": "prism", "prism_base": "proxy-nca", "prism_memory": 1024, "prism_warm_up": 51},
}
"""`default` is `retrieval train`, `frozen` the same with `--frozen`. They and `proxy-nca posteriors` read label
posteriors. All have the default's start.

PRISM's warm-up is an epoch of `cars`."""
RATES = {("proxy-anchor", "uniform:0.5"): 3e-4, ("prism", "uniform:0.3"): 3e-4, ("prism", "uniform:0.5"): 3e-4}
"""Learning rates by variant and noise where another than the default's is better on a tuning set."""


@dataclass(frozen=True, slots=True)
class NetworkCell:
    """One training of a network, on one dataset with one noise.

    Attributes:
        dataset: of `benchmarks.noise.splits`.
        noise: `clean` or as `--label-noise` has it.
        plan: options of the network by name, as `--option` gives them.
    """

    dataset: str
    noise: str
    variant: str
    seed: int
    plan: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Of its files."""
        plan = "_".join(f"{name}-{value}" for name, value in self.plan)
        own = digest(VARIANTS[self.variant], digits=4) if VARIANTS[self.variant] else ""
        return "_".join((name_set(self.dataset, self.noise), self.variant + own, plan, f"seed{self.seed}"))

    def options(self, *, width: int) -> dict[str, Any]:
        """Of `retrieval_app.train`."""
        noise: dict[str, Any] = {} if self.noise == CLEAN else {"label_noise": self.noise}
        if self.variant == "prism":  # its authors give it the true share of wrong labels
            noise["prism_rate"] = 0.0 if self.noise == CLEAN else float(self.noise.partition(":")[2])
        return {
            "backbone": BACKBONE,
            "embedding_dim": width,
            "seed": self.seed,
            "holdout": False,
            **noise,
            **VARIANTS[self.variant],
            **dict(self.plan),
        }


def run_cell(cell: NetworkCell, folder: Path, *, weights: Path | str, width: int, cache: Path) -> dict[str, Any]:
    """The record of a training: as it was written, or made now; a run that was interrupted goes on."""
    dataset, test = list_split(cell.dataset, work=cache)
    data = write_records(dataset.records, folder / "data" / f"{name_set(cell.dataset)}.csv")
    options, name = {"weights": weights, **cell.options(width=width)}, cell.name

    def make() -> dict[str, Any]:
        print(name, file=sys.stderr, flush=True)
        run = folder / "runs" / name
        resumed = (run / "config.json").exists()
        started, used = time.perf_counter(), time.process_time()
        with watch_training() as watcher:
            report = train(data, run, cache=cache, resume=resumed, watcher=watcher, **options)
        seconds = {"wall": time.perf_counter() - started, "processor": time.process_time() - used}
        return {
            "name": name,
            **record_scores(_search(run, test, cache=cache)),
            "seconds": None if resumed else seconds,
            "load": os.getloadavg()[1],
            "report": report,
        }

    return keep(folder / "cells" / f"{name}.json", make)


def judge_cell(cell: NetworkCell, folder: Path, *, cache: Path) -> dict[str, Any]:
    """Scores of a finished training's network with a head in closed form; kept."""
    run = folder / "runs" / cell.name

    def make() -> dict[str, Any]:
        found = _search(run, list_split(cell.dataset, work=cache)[1], cache=cache, in_closed_form=True)
        return {"closed_form": record_scores(found)}

    return keep(folder / "judged" / f"{cell.name}.json", make)


def write_records(records: Sequence[Record], path: Path) -> Path:
    """A table of images and labels that `retrieval train` takes, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            writer.writerows((record.path.resolve(), record.label) for record in records)
    return path


def _search(run_path: Path, test: Dataset, *, cache: Path, in_closed_form: bool = False) -> RetrievalScores:
    """Of the test images, by the exported model, or by its network with within-class whitening by label posteriors."""
    run = RunFolder.open(run_path)
    backbone, head, _ = run.load_trained()
    machine = Machine(cache, precision="float32")
    extractor = Extractor(backbone, run.preprocess(), device=machine.device, precision=machine.precision)

    def see(records: Dataset) -> ValidationSet:
        prepared = prepare_validation(records, machine=machine, extractor=extractor, watcher=Watcher())
        assert prepared is not None
        return prepared.ungrouped

    if in_closed_form:
        known = see(Dataset(tuple(Record(image.path, image.used) for image in run.read_labels() or [])))
        head = fit_rival(WCCN, LabelledFeatures(known.features, known.labels), embedding_dim=head.embedding_dim)
    searched = see(test)
    return searched.score(embed_features(head, searched.features))


def search_rivals(
    dataset: str,
    seeing: Sequence[tuple[str, str]],
    folder: Path,
    *,
    weights: Path | str,
    width: int,
    cache: Path,
    backbone: str,
    workers: int,
) -> dict[str, dict[str, Any]]:
    """Hits of every rival that reads no labels, by its name with view and pooling; written once."""
    found: dict[str, dict[str, Any]] = {}
    for view, pooling in seeing:
        name = name_set(dataset, backbone.replace("/", "-"), view, pooling)

        def make(view: str = view, pooling: str = pooling, name: str = name) -> dict[str, Any]:
            features = folder / "features" / name
            sizes = resolve_input(backbone, view=view, pooling=pooling)
            prepare_features(
                dataset, features, cache=cache, backbone=backbone, weights=str(weights), sizes=sizes, workers=workers
            )
            return _search_rivals(features, width=width)

        kept = keep(folder / "rivals" / f"{name}_{width}d.json", make)
        found |= {f"{rival}, {view}, {pooling}": one for rival, one in kept.items()}
    return found


def record_scores(scores: RetrievalScores) -> dict[str, Any]:
    """Recall@K and MAP@R, and of every query its hit at K=1 and its class, as JSON."""
    return {
        "recall": {str(k): value for k, value in scores.recall.items()},
        "map_at_r": float(scores.average_precision.mean()),
        "hits": scores.hits[1].astype(int).tolist(),
        "classes": scores.labels.tolist(),
    }


def _search_rivals(folder: Path, *, width: int) -> dict[str, dict[str, Any]]:
    features = load_features(folder)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, features.ks)
    rivals = fit_rivals(LabelledFeatures(features.train, features.train_labels), embedding_dim=width)
    return {
        name: record_scores(validation.score(embed_features(head, validation.features)))
        for name, head in rivals.items()
        if name != WCCN
    }
