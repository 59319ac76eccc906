"""One training of a network with the seconds it took, and the hits of a search on images that it never saw."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import write_json
from benchmarks.network.variants import NetworkCell, name_set
from benchmarks.noise.splits import SplitRecords, list_split
from index.evaluation.metrics import RetrievalScores
from retrieval_app import train
from training.backbone.extract import Extractor, extract_features, open_store
from training.options.machine import resolve_device
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder
from training.run.validate import ValidationSet, embed_features


def run_cell(cell: NetworkCell, folder: Path, *, weights: Path | str, width: int, cache: Path) -> dict[str, Any]:
    """The record of a training: as it was written, or made now; a run that was interrupted goes on."""
    record, run = folder / "cells" / f"{cell.name}.json", folder / "runs" / cell.name
    if record.exists():
        stored: dict[str, Any] = json.loads(record.read_text())
        return stored
    split = list_split(cell.dataset, work=cache)
    data = _write_training_set(split, folder / "data" / f"{name_set(cell.dataset)}.csv")
    resumed = (run / "config.json").exists()
    started, used = time.perf_counter(), time.process_time()
    report = train(
        data, run, weights=weights, cache=cache, resume=resumed, watcher=Watcher(on_epoch=_show(cell), on_note=_say),
        **cell.options(width=width),
    )  # fmt: skip
    seconds = {"wall": time.perf_counter() - started, "processor": time.process_time() - used}
    scores = _search(run, split, cache=cache)
    document = {
        "name": cell.name, "recall": {str(k): found for k, found in scores.recall.items()},
        "hits": scores.hits[1].astype(int).tolist(), "classes": scores.labels.tolist(),
        "seconds": None if resumed else seconds, "load": os.getloadavg()[1], "report": report,
    }  # fmt: skip
    write_json(record, document)
    return document


def _write_training_set(split: SplitRecords, path: Path) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label"])
            writer.writerows((record.path.resolve(), record.label) for record in split.train)
    return path


def _search(run_path: Path, split: SplitRecords, *, cache: Path) -> RetrievalScores:
    """Of the test images, by the model as it ships."""
    run = RunFolder.open(run_path)
    backbone, head, _ = run.load_trained()
    extractor = Extractor(backbone, run.preprocess(), device=resolve_device("auto"), precision="float32")
    paths = [record.path for record in split.test]
    store = open_store(cache, extractor, views=1)
    extracted = extract_features(paths, store=store, extractor=extractor, views=1, workers=os.cpu_count() or 1)
    features = store.load(extracted.hashes)[:, 0]
    labels = np.unique([split.test[row].label for row in extracted.rows], return_inverse=True)[1].astype(np.int64)
    gallery = None if split.is_gallery is None else np.array(split.is_gallery)[list(extracted.rows)]
    return ValidationSet(features, labels, gallery, split.ks).score(embed_features(head, features))


def _show(cell: NetworkCell) -> Any:
    def show(report: EpochReport) -> None:
        if report.phase == "network":
            parts = {"unseen": report.unseen, "seen": report.seen}
            found = ", ".join(f"{part} {100 * value:.1f}" for part, value in parts.items() if value is not None)
            print(f"{cell.name} epoch {report.epoch}: loss {report.loss:.3f}, {report.images_per_second:.0f} images/s, "
                  f"{report.seconds:.0f} s; {found}", file=sys.stderr, flush=True)  # fmt: skip

    return show


def _say(note: str) -> None:
    print(note, file=sys.stderr, flush=True)
