"""One training of a network with the seconds it took, and the hits of a search on images that it never saw."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.kept import keep
from benchmarks.network.rivals import record_scores
from benchmarks.network.variants import NetworkCell, name_set
from benchmarks.noise.splits import SplitRecords, list_split
from index.evaluation.metrics import RetrievalScores
from index.threads import usable_cores
from retrieval_app import train
from training.backbone.extract import Extractor
from training.data.datasets import Record
from training.options.machine import Machine, resolve_device
from training.run.display import watch_training
from training.run.phases import Watcher
from training.run.prepare import ValidationRecords, prepare_validation
from training.run.run_folder import RunFolder
from training.run.validate import embed_features


def run_cell(cell: NetworkCell, folder: Path, *, weights: Path | str, width: int, cache: Path) -> dict[str, Any]:
    """The record of a training: as it was written, or made now; a run that was interrupted goes on."""
    split = list_split(cell.dataset, work=cache)
    data = write_records(split.train, folder / "data" / f"{name_set(cell.dataset)}.csv")
    options = {"weights": weights, **cell.options(width=width)}
    return train_on(data, folder, cell.name, split=split, options=options, cache=cache)


def train_on(
    data: Path, folder: Path, name: str, *, split: SplitRecords, options: Mapping[str, Any], cache: Path
) -> dict[str, Any]:
    """The record of a training on a table of labels; the run is `folder`/runs/`name`."""

    def make() -> dict[str, Any]:
        print(name, file=sys.stderr, flush=True)
        run = folder / "runs" / name
        resumed = (run / "config.json").exists()
        started, used = time.perf_counter(), time.process_time()
        with watch_training() as watcher:
            report = train(data, run, cache=cache, resume=resumed, watcher=watcher, **options)
        seconds = {"wall": time.perf_counter() - started, "processor": time.process_time() - used}
        return {
            "name": name, **record_scores(_search(run, split, cache=cache)),
            "seconds": None if resumed else seconds, "load": os.getloadavg()[1], "report": report,
        }  # fmt: skip

    return keep(folder / "cells" / f"{name}.json", make)


def write_records(records: Sequence[Record], path: Path) -> Path:
    """A table of images and labels that `retrieval train` takes, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            writer.writerows((record.path.resolve(), record.label) for record in records)
    return path


def _search(run_path: Path, split: SplitRecords, *, cache: Path) -> RetrievalScores:
    """Of the test images, by the model as it ships."""
    run = RunFolder.open(run_path)
    backbone, head, _ = run.load_trained()
    machine = Machine(cache, resolve_device("auto"), usable_cores(), "float32")
    extractor = Extractor(backbone, run.preprocess(), device=machine.device, precision=machine.precision)
    records = ValidationRecords(tuple(split.test), split.is_gallery, split.ks)
    prepared = prepare_validation(records, machine=machine, extractor=extractor, watcher=Watcher())
    assert prepared is not None
    validation = prepared[0]
    return validation.score(embed_features(head, validation.features))
