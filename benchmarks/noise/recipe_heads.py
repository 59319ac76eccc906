"""Heads as the variations of the recipe have them, trained on one split; what they share is computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.noise.cells import digest
from benchmarks.noise.recipe_variations import AVERAGED_SEEDS, MODULE_FOLDS, START, Variation
from index.arrays import Floats
from index.labels.suspicion import suspect_labels
from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import Beliefs, believe_module, believe_others, compute_confidences
from training.confidence.module import ConfidenceModule
from training.head.embedding_heads import Head, ProjectionHead
from training.head.projection import PrincipalAxes, Projection, count_directions, fit_principal_axes
from training.head.untrained import POWERS, fit_untrained, make_projection_head
from training.head.whitening import fit_within_classes
from training.options.config import ConfidenceConfig, EmbeddingConfig
from training.options.resolve import DEFAULT
from training.run.fit import fit_confidence
from training.run.heads import train_head
from training.run.phases import PhaseContext

MODULE_LR = 1e-3  # of the two that the grid tries, the one with the lower held-out loss


class TrainingPart:
    """The training images of one split; what several variations need is computed once.

    Args:
        features: (N, F) float32.
        labels: (N,) int64 given labels, with gaps.
        seed: of everything that is drawn.
    """

    def __init__(self, features: Floats, labels: np.ndarray, *, seed: int) -> None:
        self.features = features
        classes, numbers = np.unique(labels, return_inverse=True)
        self.class_count = len(classes)
        self.labels = torch.from_numpy(numbers.astype(np.int64))
        self.source = CachedSource(torch.from_numpy(features)[:, None])
        self.seed = seed
        self._made: dict[str, Any] = {}

    @cached_property
    def beliefs(self) -> Beliefs:
        """Of the recipe."""
        return believe_others(self.source, self.labels, class_count=self.class_count, groups=None)

    @cached_property
    def axes(self) -> PrincipalAxes:
        """All of them."""
        return fit_principal_axes(self.features, embedding_dim=count_directions(self.features))

    def first_axes(self, width: int) -> PrincipalAxes:
        """Those of most variance."""
        return replace(self.axes, variances=self.axes.variances[:width], axes=self.axes.axes[:width])

    def _once(self, make: Callable[[], Any], *facts: object) -> Any:
        """What is made by these facts, the first time."""
        if (key := digest(facts)) not in self._made:
            self._made[key] = make()
        return self._made[key]

    def own(self, kind: str) -> Tensor:
        """(N,) confidence in every label, by name of `BELIEFS`."""
        return self._once(lambda: BELIEFS[kind](self), kind)

    def start(self, variation: Variation, width: int) -> Projection:
        """The directions that the head begins with."""
        options = {**START, "weights": variation.beliefs, **variation.start}

        def fit() -> Projection:
            weights, labels = self.own(options["weights"]).numpy(), self.labels.numpy()
            chosen = {**options, "weights": weights}
            return fit_within_classes(self.features, labels, embedding_dim=width, **chosen)

        return self._once(fit, "start", options, width)

    def train(self, variation: Variation, width: int, *, seed_offset: int = 0) -> Head:
        """The trained head."""
        offset, size = variation.seed_offset + seed_offset, {"class_count": self.class_count, "width": width}

        def train() -> Head:
            beliefs = replace(self.beliefs, weights=self.own(variation.beliefs))
            how = {"config": variation.config(**size), "context": make_context(self.seed + offset)}
            # What shapes the start is no option of a run, so that another start takes its place here.
            with patch("training.run.start.fit_within_classes", lambda *_, **__: self.start(variation, width)):
                return train_head(self.source, self.labels, class_count=self.class_count, **how, beliefs=beliefs)[
                    0
                ]

        return self._once(train, "head", variation.describe(**size), offset)


def make_context(seed: int) -> PhaseContext:
    return PhaseContext(seed=seed, device=torch.device("cpu"), checkpoint=None)


def _fit_module(part: TrainingPart, rows: Tensor) -> ConfidenceModule:
    return fit_confidence(
        CachedSource(part.source.centre[rows][:, None]), part.labels[rows], class_count=part.class_count,
        config=ConfidenceConfig(confidence_lr=MODULE_LR), batch_size=DEFAULT["batch_size"],
        weight_decay=EmbeddingConfig().weight_decay, context=make_context(part.seed),
    )  # fmt: skip


def _believe_own_module(part: TrainingPart) -> Tensor:
    module = _fit_module(part, torch.arange(len(part.labels)))
    return believe_module(module, part.source, part.labels).own


def _believe_folds(part: TrainingPart) -> Tensor:
    """Confidence modules, each asked about the images that it has not seen."""
    own = torch.empty(len(part.labels))
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(part.seed))
    for asked in order.chunk(MODULE_FOLDS):
        others = torch.ones(len(own), dtype=torch.bool)
        others[asked] = False
        module = _fit_module(part, torch.nonzero(others)[:, 0])
        confidences = compute_confidences(module, part.source.centre[asked])
        own[asked] = confidences.gather(1, part.labels[asked, None])[:, 0]
    return own


def _believe_noise_model(part: TrainingPart) -> Tensor:
    confidences = torch.cat([found for _, found in part.beliefs.confidences.blocks()])
    return torch.from_numpy(1 - suspect_labels(confidences.numpy(), part.labels.numpy()).wrong).float()


BELIEFS: Mapping[str, Callable[[TrainingPart], Tensor]] = {
    "leave-one-out": lambda part: part.beliefs.weights,
    "confidence": lambda part: part.beliefs.own,
    "given": lambda part: torch.ones(len(part.labels)),
    "squared": lambda part: part.beliefs.own.square(),
    "root": lambda part: part.beliefs.own.sqrt(),
    "noise-model": _believe_noise_model,
    "module": _believe_own_module,
    "module-in-folds": _believe_folds,
}


def _cut(projection: Projection, width: int) -> ProjectionHead:
    """The start alone: the first directions, as they are."""
    return ProjectionHead(torch.from_numpy(projection.weight[:width]), torch.from_numpy(projection.bias[:width]))


def _project(part: TrainingPart, _: Variation, width: int, *, method: str) -> list[Head]:
    return [make_projection_head(part.first_axes(width), method)]


def _average(heads: list[Head], shares: list[float]) -> ProjectionHead:
    """Mean of the maps before L2 normalisation; with the same directions under them, the mean of `mix`."""
    weights = torch.tensor(shares)
    states = [head.state_dict() for head in heads]
    return ProjectionHead(*(
        torch.tensordot(weights, torch.stack([state[name] for state in states]), dims=1) for name in ("weight", "bias")
    ))  # fmt: skip


def _average_seeds(part: TrainingPart, variation: Variation, width: int) -> list[Head]:
    heads = [part.train(variation, width, seed_offset=offset) for offset in range(AVERAGED_SEEDS)]
    return [_average(heads, [1 / AVERAGED_SEEDS] * AVERAGED_SEEDS)]


def _go_back(part: TrainingPart, variation: Variation, width: int) -> list[Head]:
    heads = [part.train(variation, width), _cut(part.start(variation, width), width)]
    return [_average(heads, [variation.share, 1 - variation.share])]


def _put_beside(part: TrainingPart, variation: Variation, width: int) -> list[Head]:
    trained = round(variation.share * width)
    alone = width - trained
    return [part.train(variation, trained), _cut(part.start(variation, alone), alone)]


MAKERS: Mapping[str, Callable[[TrainingPart, Variation, int], list[Head]]] = {
    "raw": lambda part, _, width: [fit_untrained("raw", part.features, embedding_dim=width)],
    **{name: partial(_project, method=name) for name in POWERS},
    "start": lambda part, variation, width: [_cut(part.start(variation, width), width)],
    "trained": lambda part, variation, width: [part.train(variation, width)],
    "mean of seeds": _average_seeds,
    "on the way": _go_back,
    "side by side": _put_beside,
}
"""Heads whose unit embeddings are put side by side."""
