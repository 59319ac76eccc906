"""A grid of trainings on shared features: every cell a JSON file, run in parallel processes, continued after a stop.

Phase 1 runs once for every noisy label set; all cells of that set read its confidences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.parallel import run_parallel
from benchmarks.common.record import save_array, write_with_record
from benchmarks.noise.cells import CLEAN, FILTERED, RECIPE, Cell, GridFolder, LabelSet
from benchmarks.noise.class_words import guide_by_names
from benchmarks.noise.feature_sets import FeatureSet, hold_out_for_tuning, load_features
from benchmarks.noise.shapes import FULL, thin_classes
from benchmarks.noise.shared_axes import sharing_axes
from index.evaluation.clustering import nmi
from index.evaluation.metrics import ranking_auc
from index.vectors.exact import search
from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import (
    Beliefs,
    FixedConfidences,
    believe_others,
    compute_confidences,
    rows_to_trust,
)
from training.head.embedding_heads import Head
from training.head.projection import count_directions
from training.head.untrained import LabelledFeatures, fit_rival
from training.label_noise.hierarchy import read_hierarchy
from training.label_noise.noise import add_label_noise
from training.options.config import ConfidenceConfig, DataConfig, EmbeddingConfig, LabelNoise, TrainConfig
from training.options.losses import NEEDS_CONFIDENCES, RIVALS
from training.options.machine import resolve_device
from training.run.fit import fit_confidence, fit_embedding
from training.run.heads import find_beliefs, train_head
from training.run.phases import PhaseContext
from training.run.validate import ValidationSet, embed_features

MIN_CONFIDENCE = 0.1  # of filtered methods, as in the SPA paper
SHOWN_QUERIES, SHOWN_NEIGHBOURS = 6, 4
MOST_CLUSTERS = 1000  # of NMI: k-means with more would outlast the training


def run_cells(folder: GridFolder, cells: Sequence[Cell], **pool: int) -> None:
    """Run the cells that have no record yet, phase 1 of their label sets first.

    Args:
        folder: of features, confidences and records; the features must stand.
        cells: in the order they are begun.
        pool: `workers` processes of `threads` threads each.
    """
    waiting = {cell.name: cell for cell in cells if not folder.cell(cell).exists()}
    fit_label_sets(folder, [cell.labels for cell in waiting.values() if cell.needs_confidences], **pool)
    judged = {folder.beliefs(cell.labels): cell.labels for cell in waiting.values() if cell.needs_beliefs}
    missing = [(folder, labels) for path, labels in judged.items() if not path.exists()]
    run_parallel(judge_label_set, missing, "leave-one-out", **pool)
    run_parallel(run_cell, [(folder, cell) for cell in waiting.values()], "trainings", **pool)


def fit_label_sets(folder: GridFolder, label_sets: Sequence[LabelSet], **pool: int) -> None:
    """Run phase 1 of the label sets that have no confidences yet."""
    missing = {one.name: one for one in label_sets if not folder.report(one).exists()}
    run_parallel(fit_label_set, [(folder, one) for one in missing.values()], "phase 1", **pool)


def load_label_set(folder: GridFolder, labels: LabelSet) -> tuple[FeatureSet, np.ndarray]:
    """The features of a label set, and its (N,) noisy training labels."""
    features = load_shaped(folder, labels)
    noise = read_noise(labels.noise, hierarchy=folder.hierarchy)
    if noise is None:
        return features, features.train_labels
    hierarchy = None
    if noise.kind == "semantic" and folder.hierarchy is not None:
        hierarchy = read_hierarchy(Path(folder.hierarchy), classes=features.classes)
    parts = {"classes": features.classes, "features": features.train, "hierarchy": hierarchy}
    return features, add_label_noise(features.train_labels, noise=noise, **parts, seed=labels.seed)


def load_shaped(folder: GridFolder, labels: LabelSet) -> FeatureSet:
    """The features of a label set: those that judge, and of those that train what its shape leaves."""
    features = load_features(folder.features(labels.dataset))
    if labels.fold is not None:
        features = hold_out_for_tuning(features, fold=labels.fold[0], folds=labels.fold[1])
    if labels.shape == FULL:
        return features
    rows = thin_classes(features.train_labels, shape=labels.shape, seed=labels.seed)
    return replace(features, train=features.train[rows], train_labels=features.train_labels[rows])


def read_noise(noise: str, *, hierarchy: str | None) -> LabelNoise | None:
    """The noise that `retrieval train` would take by this name; None for clean labels.

    Raises:
        InputError: no such noise, or semantic noise without a hierarchy.
    """
    if noise == CLEAN:
        return None
    return DataConfig(label_noise=noise, hierarchy=hierarchy if noise.startswith("semantic") else None).noise


def fit_label_set(folder: GridFolder, labels: LabelSet) -> None:
    """Phase 1 on one noisy labelling: its confidences, and how well they tell wrong labels from right ones."""
    features, noisy = load_label_set(folder, labels)
    device, started = resolve_device("auto"), time.perf_counter()
    source = CachedSource(torch.from_numpy(features.train)[:, None].to(device))
    held_out: list[float | None] = []
    embedding = EmbeddingConfig()
    context = PhaseContext(
        seed=labels.seed, device=device, checkpoint=None,
        on_epoch=lambda report: held_out.append(report.held_out_loss),
    )  # fmt: skip
    module = fit_confidence(
        source, torch.from_numpy(noisy).to(device), class_count=len(features.classes),
        config=ConfidenceConfig(**labels.phase1), batch_size=embedding.batch_size,
        weight_decay=embedding.weight_decay, context=context,
    )  # fmt: skip
    confidences = compute_confidences(module, source.centre).cpu().numpy()
    own = confidences[np.arange(len(noisy)), noisy]
    wrong = noisy != features.train_labels
    record = {
        "labels": asdict(labels), "samples": len(noisy), "wrong": int(wrong.sum()), "auc": ranking_auc(-own, wrong),
        "held_out_losses": held_out, "seconds": time.perf_counter() - started,
    }  # fmt: skip
    write_with_record(folder.report(labels), record, lambda file: np.save(file, confidences), suffix=".npy")


def run_cell(folder: GridFolder, cell: Cell) -> None:
    """Train one cell and write its record."""
    features, noisy = load_label_set(folder, cell.labels)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, features.ks)
    started = time.perf_counter()
    curve: dict[str, float] = {}

    def note(epoch: int, head: Head) -> None:
        if epoch in cell.curve:
            curve[str(epoch)] = validation.score(embed_features(head, features.test)).recall[min(features.ks)]

    with sharing_axes():
        head, kept = _train(folder, cell, features, noisy, note)
    seconds = time.perf_counter() - started
    embeddings = embed_features(head, features.test)
    scores = validation.score(embeddings)
    is_trial = cell.labels.fold is not None
    clusters = len(set(features.test_names))
    record = {
        "cell": asdict(cell), "samples": len(noisy), "samples_used": kept, "test_images": len(features.test),
        "seconds": seconds, "curve": curve, "embedding_dim": head.embedding_dim, **scores.to_json(),
        "mean_class_recall_at_1": scores.mean_class_recall(min(features.ks)),
        "nmi": None if is_trial or clusters > MOST_CLUSTERS else nmi(embeddings, features.test_labels, seed=0),
        "neighbours": {} if is_trial else _show_neighbours(embeddings, validation),
    }  # fmt: skip
    hits = scores.hits[min(features.ks)].astype(bool)
    write_with_record(folder.cell(cell), record, lambda file: np.save(file, hits), suffix=".npy")


def _train(
    folder: GridFolder, cell: Cell, features: FeatureSet, noisy: np.ndarray, note: Callable[[int, Head], None]
) -> tuple[Head, int]:
    """The head, and the number of training images that it saw."""
    if cell.base_method in RIVALS:
        width = min(cell.width, count_directions(features.train))
        beliefs = _find_beliefs(folder, cell, noisy)
        weights = None if beliefs is None else beliefs.weights.cpu().numpy()
        images = LabelledFeatures(features.train, noisy, weights=weights)
        return fit_rival(cell.base_method, images, embedding_dim=width), len(features.train)
    device = resolve_device("auto")
    config = cell.config()
    labels = torch.from_numpy(noisy).to(device)
    beliefs = _find_beliefs(folder, cell, noisy)
    if cell.method == RECIPE:
        return train_run(features.train, labels, class_count=len(features.classes), config=config, beliefs=beliefs)
    rows = None
    if cell.method.endswith(FILTERED) and beliefs is not None:
        rows = rows_to_trust(beliefs.own, min_confidence=MIN_CONFIDENCE)
    reads = cell.base_method in NEEDS_CONFIDENCES and beliefs is not None
    source = CachedSource(torch.from_numpy(features.train)[:, None].to(device))
    context = PhaseContext(seed=cell.labels.seed, device=device, checkpoint=None)
    head = fit_embedding(
        source, labels, class_count=len(features.classes), loss_config=config.loss, config=config.embedding,
        confidences=beliefs.confidences if reads and beliefs is not None else None, context=context, rows=rows,
        own=None if beliefs is None else beliefs.weights, on_head=note,
        guidance=guide_by_names(cell.labels.dataset, features.classes) if cell.is_guided else None,
    )  # fmt: skip
    return head, len(labels) if rows is None else len(rows)


def _find_beliefs(folder: GridFolder, cell: Cell, noisy: np.ndarray) -> Beliefs | None:
    """Those of the confidence module that was trained before, or by leave-one-out; None for what asks for none."""
    if not (cell.needs_confidences or cell.needs_beliefs):
        return None
    path = folder.confidences(cell.labels) if cell.needs_confidences else folder.beliefs(cell.labels)
    if cell.needs_beliefs and not path.exists():
        judge_label_set(folder, cell.labels)
    values = torch.from_numpy(np.load(path)).to(resolve_device("auto"))
    labels, against_others = torch.from_numpy(noisy).to(values.device), not cell.needs_confidences
    return Beliefs.of(FixedConfidences(values), labels, against_others=against_others)


def judge_label_set(folder: GridFolder, labels: LabelSet) -> None:
    """Leave-one-out confidences of a label set: of the recipe, of its start alone, and of rivals that use it."""
    features, noisy = load_label_set(folder, labels)
    source = CachedSource(torch.from_numpy(features.train)[:, None])
    count = len(features.classes)
    beliefs = believe_others(source, torch.from_numpy(noisy), class_count=count, groups=None)
    save_array(folder.beliefs(labels), torch.cat([found for _, found in beliefs.confidences.blocks()]).numpy())


def train_run(
    features: np.ndarray,
    labels: torch.Tensor,
    *,
    class_count: int,
    config: TrainConfig,
    beliefs: Beliefs | None = None,
) -> tuple[Head, int]:
    """Both phases of a run on (N, F) features at hand, (N,) labels in 0..C-1; the head, and how many images it saw.

    The first is left out where its `beliefs` are at hand.
    """
    source = CachedSource(torch.from_numpy(features)[:, None].to(labels.device))
    context = PhaseContext(seed=config.seed, device=labels.device, checkpoint=None)
    parts: dict[str, Any] = {"class_count": class_count, "config": config, "context": context}
    if beliefs is None and config.needs_beliefs:
        beliefs = find_beliefs(source, labels, **parts)
    return train_head(source, labels, **parts, beliefs=beliefs)


def _show_neighbours(embeddings: np.ndarray, validation: ValidationSet) -> dict[str, list[int]]:
    """Nearest test images of a few queries, for pictures: rows of the test set by the query's row."""
    asked, gallery = validation.parts()
    queries = asked[np.linspace(0, len(asked) - 1, num=min(SHOWN_QUERIES, len(asked))).round().astype(int)]
    own = queries if validation.is_gallery is None else None
    found = search(embeddings[queries], embeddings[gallery], k=SHOWN_NEIGHBOURS, own=own).rows
    return {str(query): gallery[row].tolist() for query, row in zip(queries, found, strict=True)}
