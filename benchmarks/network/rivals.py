"""What needs no training: the frozen network's features of several views and poolings, reduced to the same width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.kept import keep
from benchmarks.network.variants import name_set
from benchmarks.noise.feature_sets import load_features, prepare_features
from index.evaluation.metrics import RetrievalScores
from training.head.untrained import LabelledFeatures, fit_rivals
from training.options.losses import CLASS_WHITENED
from training.options.resolve import resolve_input
from training.run.validate import ValidationSet, embed_features


def search_rivals(
    dataset: str, seeing: Sequence[tuple[str, str]], folder: Path, *, weights: Path | str, width: int, cache: Path,
    workers: int,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Hits of every rival that reads no labels, by its name with view and pooling; written once."""
    found: dict[str, dict[str, Any]] = {}
    for view, pooling in seeing:

        def make(view: str = view, pooling: str = pooling) -> dict[str, Any]:
            features = folder / "features" / name_set(dataset, view, pooling)
            sizes = resolve_input("mobilenet_v2", view=view, pooling=pooling)
            prepare_features(
                dataset, features, cache=cache, backbone="mobilenet_v2", weights=str(weights), sizes=sizes,
                workers=workers,
            )  # fmt: skip
            return _search(features, width=width)

        kept = keep(folder / "rivals" / f"{name_set(dataset, view, pooling, f'{width}d')}.json", make)
        found |= {f"{name}, {view}, {pooling}": one for name, one in kept.items()}
    return found


def record_scores(scores: RetrievalScores) -> dict[str, Any]:
    """Recall@K, and of every query its hit at K=1 and its class, as JSON."""
    return {
        "recall": {str(k): value for k, value in scores.recall.items()},
        "hits": scores.hits[1].astype(int).tolist(), "classes": scores.labels.tolist(),
    }  # fmt: skip


def _search(folder: Path, *, width: int) -> dict[str, dict[str, Any]]:
    features = load_features(folder)
    validation = ValidationSet(features.test, features.test_labels, features.is_gallery, features.ks)
    rivals = fit_rivals(LabelledFeatures(features.train, features.train_labels), embedding_dim=width)
    return {
        name: record_scores(validation.score(embed_features(head, validation.features)))
        for name, head in rivals.items()
        if name != CLASS_WHITENED
    }
