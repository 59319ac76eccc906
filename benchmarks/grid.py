"""A grid of trainings on shared features: every cell a JSON file, run in parallel processes, continued after a stop.

Phase 1 runs once for every noisy label set; all cells of that set read its confidences.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cells import CLEAN, FILTERED, Cell, GridFolder, LabelSet
from benchmarks.feature_sets import FeatureSet, hold_out_for_tuning, load_features
from index.clustering import nmi
from index.console import build_config, progress_bar
from index.exact import search
from training.confidences import FixedConfidences, compute_confidences, rows_to_trust
from training.config import ConfidenceConfig, DataConfig, EmbeddingConfig
from training.fit import fit_confidence, fit_embedding
from training.hierarchy import read_hierarchy
from training.loss_config import UNTRAINED_METHODS, LossConfig
from training.machine import resolve_device
from training.model import EmbeddingHead, Head
from training.noise import add_label_noise
from training.phases import PhaseContext
from training.sources import CachedSource
from training.untrained import fit_untrained
from training.validate import ValidationSet, embed_features

MIN_CONFIDENCE = 0.1  # of filtered methods, as in the SPA paper
SHOWN_QUERIES, SHOWN_NEIGHBOURS = 6, 4


def run_cells(folder: GridFolder, cells: Sequence[Cell], *, workers: int, threads: int) -> None:
    """Run the cells that have no record yet, phase 1 of their label sets first.

    Args:
        folder: of features, confidences and records; the features must stand.
        cells: in the order they are begun.
        workers: processes; together they use workers x threads cores.
        threads: of each process.
    """
    waiting = {cell.name: cell for cell in cells if not folder.cell(cell).exists()}
    fit_label_sets(
        folder,
        [cell.labels for cell in waiting.values() if cell.needs_confidences],
        workers=workers,
        threads=threads,
    )
    _run_parallel(
        run_cell, [(folder, cell) for cell in waiting.values()], "trainings", workers=workers, threads=threads
    )


def fit_label_sets(folder: GridFolder, label_sets: Sequence[LabelSet], *, workers: int, threads: int) -> None:
    """Run phase 1 of the label sets that have no confidences yet."""
    missing = {one.name: one for one in label_sets if not folder.report(one).exists()}
    _run_parallel(
        fit_label_set, [(folder, one) for one in missing.values()], "phase 1", workers=workers, threads=threads
    )


def _run_parallel(
    task: Callable[..., None], arguments: Sequence[tuple[Any, ...]], what: str, *, workers: int, threads: int
) -> None:
    if not arguments:
        return
    with progress_bar(what, unit="cells") as progress:
        if workers == 1:
            torch.set_num_threads(threads)
            for done, each in enumerate(arguments, start=1):
                task(*each)
                progress(done, len(arguments))
            return
        # Read when a worker imports its libraries; without it every process would start a thread for every core.
        os.environ.update(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE")
        pool = ProcessPoolExecutor(
            min(workers, len(arguments)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(threads,),
        )
        futures = [pool.submit(task, *each) for each in arguments]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                progress(done, len(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def load_label_set(folder: GridFolder, labels: LabelSet) -> tuple[FeatureSet, np.ndarray]:
    """The features of a label set, and its (N,) noisy training labels."""
    features = load_features(folder.features(labels.dataset))
    if labels.tuning:
        features = hold_out_for_tuning(features)
    noise = None if labels.noise == CLEAN else read_noise(labels.noise, hierarchy=folder.hierarchy).noise
    if noise is None:
        return features, features.train_labels
    hierarchy = None
    if noise.kind == "semantic" and folder.hierarchy is not None:
        hierarchy = read_hierarchy(Path(folder.hierarchy), classes=features.classes)
    noisy = add_label_noise(
        features.train_labels,
        noise=noise,
        classes=features.classes,
        features=features.train,
        hierarchy=hierarchy,
        seed=labels.seed,
    )
    return features, noisy


def read_noise(noise: str, *, hierarchy: str | None) -> DataConfig:
    """The options of a noise as `retrieval train` would take them.

    Raises:
        InputError: no such noise, or semantic noise without a hierarchy.
    """
    return DataConfig(label_noise=noise, hierarchy=hierarchy if noise.startswith("semantic") else None)


def fit_label_set(folder: GridFolder, labels: LabelSet) -> None:
    """Phase 1 on one noisy labelling: its confidences, and how well they tell wrong labels from right ones."""
    features, noisy = load_label_set(folder, labels)
    device, started = resolve_device("auto"), time.perf_counter()
    source = CachedSource(torch.from_numpy(features.train)[:, None].to(device))
    held_out: list[float] = []
    embedding = EmbeddingConfig()
    module = fit_confidence(
        source,
        torch.from_numpy(noisy).to(device),
        class_count=len(features.classes),
        config=build_config(ConfidenceConfig, labels.phase1),
        batch_size=embedding.batch_size,
        weight_decay=embedding.weight_decay,
        context=PhaseContext(
            seed=labels.seed, device=device, checkpoint=None,
            on_epoch=lambda report: held_out.append(report.held_out_loss or float("nan")),
        ),
    )  # fmt: skip
    confidences = compute_confidences(module, source.centre).cpu().numpy()
    own = confidences[np.arange(len(noisy)), noisy]
    wrong = noisy != features.train_labels
    record = {
        "labels": asdict(labels),
        "samples": len(noisy),
        "wrong": int(wrong.sum()),
        "auc": ranking_auc(-own, wrong),
        "held_out_losses": held_out,
        "seconds": time.perf_counter() - started,
    }
    _write(folder.confidences(labels), confidences, record)


def ranking_auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Chance that a positive has a higher score than another (Mann-Whitney U); None where one kind is missing."""
    if positive.all() or not positive.any():
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]  # ties share their mean rank
    above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(above / (positive.sum() * (~positive).sum()))


def run_cell(folder: GridFolder, cell: Cell) -> None:
    """Train one cell and write its record."""
    features, noisy = load_label_set(folder, cell.labels)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, features.ks)
    started = time.perf_counter()
    curve: dict[int, float] = {}
    head, kept = _train(folder, cell, features=features, noisy=noisy, validation=validation, curve=curve)
    seconds = time.perf_counter() - started
    embeddings = embed_features(head, features.test)
    scores = validation.score(embeddings)
    record = {
        "cell": asdict(cell),
        "samples": len(noisy),
        "samples_used": kept,
        "test_images": len(features.test),
        "seconds": seconds,
        "curve": {str(epoch): value for epoch, value in curve.items()},
        "embedding_dim": head.embedding_dim,
        **scores.to_json(),
        "mean_class_recall_at_1": scores.mean_class_recall(min(features.ks)),
        "nmi": None if cell.labels.tuning else nmi(embeddings, features.test_labels, seed=0),
        "neighbours": {} if cell.labels.tuning else _show_neighbours(embeddings, features),
    }
    _write(folder.cell(cell).with_suffix(".npy"), scores.hits[min(features.ks)].astype(bool), record)


def _train(
    folder: GridFolder,
    cell: Cell,
    *,
    features: FeatureSet,
    noisy: np.ndarray,
    validation: ValidationSet,
    curve: dict[int, float],
) -> tuple[Head, int]:
    """The head, and the number of training images that it saw."""
    if cell.base_method in UNTRAINED_METHODS:
        return fit_untrained(cell.base_method, features.train, embedding_dim=cell.width), len(features.train)
    device, confidences, rows = resolve_device("auto"), None, None
    labels = torch.from_numpy(noisy).to(device)
    if cell.needs_confidences:
        values = torch.from_numpy(np.load(folder.confidences(cell.labels))).to(device)
        confidences = FixedConfidences(values)
        if cell.method.endswith(FILTERED):
            rows = rows_to_trust(values.gather(1, labels[:, None])[:, 0], min_confidence=MIN_CONFIDENCE)

    def note(epoch: int, head: EmbeddingHead) -> None:
        if epoch in cell.curve:
            curve[epoch] = validation.score(embed_features(head, features.test)).recall[min(features.ks)]

    head = fit_embedding(
        CachedSource(torch.from_numpy(features.train)[:, None].to(device)),
        labels,
        class_count=len(features.classes),
        loss_config=build_config(LossConfig, {**cell.settings, "method": cell.base_method}),
        config=build_config(EmbeddingConfig, {**cell.settings, "embedding_dim": cell.width}),
        confidences=confidences,
        context=PhaseContext(seed=cell.labels.seed, device=device, checkpoint=None),
        rows=rows,
        on_head=note,
    )
    return head, len(labels) if rows is None else len(rows)


def _show_neighbours(embeddings: np.ndarray, features: FeatureSet) -> dict[str, list[int]]:
    """Nearest test images of a few queries, for pictures: rows of the test set by the query's row."""
    gallery = np.ones(len(embeddings), bool) if features.is_gallery is None else features.is_gallery
    rows = np.flatnonzero(gallery if features.is_gallery is None else ~gallery)
    queries = rows[np.linspace(0, len(rows) - 1, num=min(SHOWN_QUERIES, len(rows))).round().astype(int)]
    ids = np.flatnonzero(gallery).astype(np.int64)
    _, found = search(
        embeddings[queries],
        embeddings[gallery],
        k=SHOWN_NEIGHBOURS,
        gallery_ids=ids,
        query_ids=queries.astype(np.int64),
    )
    return {str(query): row.tolist() for query, row in zip(queries, found, strict=True)}


def _write(path: Path, array: np.ndarray, record: Mapping[str, Any]) -> None:
    """An array and the JSON that says it is whole, the latter last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, write in (
        (path, lambda file: np.save(file, array)),
        (path.with_suffix(".json"), lambda file: file.write(json.dumps(record, indent=1).encode())),
    ):
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(target)
