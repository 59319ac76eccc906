"""The trial: does training on these labels find more than no training at all, on classes and images held out?

The user's own data stands in for what will be searched. Some classes are held out whole (unseen classes), and of the
others some images (seen classes). The recipe trains on the rest, PCA with and without whitening is fitted on the rest,
and Recall@1 among what was held out compares them, by the labels as given: the wrong ones cost every method alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from index.arrays import Floats
from index.evaluation.comparison import PairedDifference, paired_bootstrap
from index.evaluation.metrics import Scores
from index.progress import Progress
from training.backbone.feature_sources import CachedSource
from training.head.embedding_heads import Head
from training.head.projection import count_directions
from training.head.untrained import LabelledFeatures, fit_rivals
from training.options.config import TrainConfig
from training.run.heads import choose_rows, find_beliefs, train_head
from training.run.phases import PhaseContext
from training.run.validate import ValidationSet, embed_features

TRAINED, REFERENCE = "trained", "raw"  # raw features are wider than the others: shown, never chosen
MANY_CLASSES, FEW_FOLDS = 25, 3
LEAST_CLASSES = 4  # to search two and train on two
IMAGE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of one fold: what trains, the images of classes held out, images held out of the classes trained."""

    train: np.ndarray
    unseen: np.ndarray
    seen: np.ndarray


@dataclass(frozen=True, slots=True)
class TrialPart:
    """Recall@1 (fractions) by method on what was held out, and the trained one against the best untrained of its width.

    `queries` and `recall` are over all folds; `difference` is trained minus `best_untrained`.
    """

    queries: int
    recall: Mapping[str, float]
    best_untrained: str
    difference: PairedDifference

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "queries": self.queries,
            "recall_at_1": dict(self.recall),
            "best_untrained": self.best_untrained,
            "difference": self.difference.mean,
            "difference_interval": [self.difference.low, self.difference.high],
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome: on unseen classes and on seen ones; None for a part that the data is too small for."""

    folds: int
    unseen: TrialPart | None
    seen: TrialPart | None

    @property
    def better_untrained(self) -> str | None:
        """The untrained method to take instead; None where training is worth it, or nothing could be tried.

        Training is not worth it where it finds significantly less among unseen classes, or no more there and no more
        among seen ones.
        """
        parts = [part for part in (self.unseen, self.seen) if part is not None]
        if not parts:
            return None
        loses = self.unseen is not None and self.unseen.difference.high < 0
        if loses or all(part.difference.mean <= 0 for part in parts):
            return parts[0].best_untrained
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as they stand in the report."""
        return {
            "folds": self.folds,
            "unseen": None if self.unseen is None else self.unseen.to_json(),
            "seen": None if self.seen is None else self.seen.to_json(),
            "better_untrained": self.better_untrained,
        }


def run_trial(
    features: Floats,
    labels: np.ndarray,
    *,
    config: TrainConfig,
    device: torch.device,
    groups: np.ndarray | None = None,
    scenes: np.ndarray | None = None,
    progress: Progress = lambda *_: None,
) -> Trial:
    """Train the recipe on parts of the data and search the rest.

    A fold with nothing to search for, or with too few (trusted) images to train on, is left out.

    Args:
        features: (N, F) float32 of the centre crops.
        labels: (N,) int64 given labels in 0..C-1.
        groups: (N,) int64, the same for files of the same bytes, which must not vouch for each other.
        scenes: (N,) int64, the same for photos of one scene: a fold holds out all of them or none, and they do not
            find each other. None: every photo is a scene of its own.

    Raises:
        RunError: training diverged.
    """
    splits = list(split_for_trial(labels, seed=config.seed, scenes=scenes))
    hits: dict[str, dict[str, list[Scores]]] = {"unseen": {}, "seen": {}}
    for number, split in enumerate(splits):
        searched = {
            part: ValidationSet(
                features[rows], labels[rows], ks=(1,), scenes=None if scenes is None else scenes[rows]
            )
            for part, rows in (("unseen", split.unseen), ("seen", split.seen))
            if _can_find(labels[rows], None if scenes is None else scenes[rows])
        }
        heads = {}
        if searched and len(np.unique(labels[split.train])) > 1:
            copies = None if groups is None else groups[split.train]
            heads = _fit_heads(
                features[split.train], labels[split.train], config=config, device=device, groups=copies
            )
        for (part, validation), (name, head) in itertools.product(searched.items(), heads.items()):
            found = validation.score(embed_features(head, validation.features)).hits[1]
            hits[part].setdefault(name, []).append(found)
        progress(number + 1, len(splits))
    return Trial(len(splits), *(_compare(hits[part], seed=config.seed) for part in ("unseen", "seen")))


def _can_find(labels: np.ndarray, scenes: np.ndarray | None) -> bool:
    """Whether some two have one label and are of two scenes."""
    if scenes is None:
        return len(np.unique(labels)) < len(labels)
    return len(np.unique(labels)) < np.unique(np.stack([labels, scenes]), axis=1).shape[1]


def split_for_trial(labels: np.ndarray, *, seed: int, scenes: np.ndarray | None = None) -> Iterator[Split]:
    """The folds: with 25 classes or more, a fifth of them is held out once; fewer all take a turn, in three folds.

    Below four classes none can be held out, and images alone are. Of every class that trains, a fifth of the images is
    held out, rounded down: of fewer than five none. With scenes it is those of whole scenes, of half a class's at most:
    images that train while others of their scene are searched are left out.

    Args:
        labels: (N,) int64 in 0..C-1.
        scenes: (N,) int64, the same for photos of one scene; None: every photo is a scene of its own.
    """
    generator = np.random.default_rng(seed)
    scenes = np.arange(len(labels)) if scenes is None else scenes
    classes = generator.permutation(np.unique(labels))
    folds, held_in = FEW_FOLDS, np.arange(len(classes)) % FEW_FOLDS
    if len(classes) >= MANY_CLASSES:
        folds, held_in = 1, np.where(np.arange(len(classes)) < len(classes) // 5, 0, 1)
    elif len(classes) < LEAST_CLASSES:
        folds, held_in = 1, np.ones(len(classes), dtype=np.int64)
    elif len(classes) < 2 * FEW_FOLDS:
        folds, held_in = 2, np.arange(len(classes)) % 2
    for fold in range(folds):
        unseen = np.isin(labels, classes[held_in == fold])
        seen = np.zeros(len(labels), dtype=bool)
        for label in classes[held_in != fold]:
            rows = np.flatnonzero(labels == label)
            seen[rows[np.isin(scenes[rows], _choose_scenes(scenes[rows], generator))]] = True
        train = ~np.isin(scenes, scenes[unseen | seen])
        yield Split(*(np.flatnonzero(mask) for mask in (train, unseen, seen)))


def _choose_scenes(scenes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Scenes of one class that are held out: with a fifth of its images, in two scenes where that is two images."""
    numbers, sizes = np.unique(scenes, return_counts=True)
    wanted, order = int(IMAGE_SHARE * len(scenes)), generator.permutation(len(numbers))
    if not wanted:
        return numbers[:0]
    enough = int(np.searchsorted(sizes[order].cumsum(), wanted)) + 1
    return numbers[order[: min(max(enough, min(wanted, 2)), len(numbers) // 2)]]


def _fit_heads(
    features: Floats, labels: np.ndarray, *, config: TrainConfig, device: torch.device, groups: np.ndarray | None
) -> dict[str, Head]:
    """The trained head and all untrained ones; as wide as the run's, or as the images that train allow.

    Empty where these span no direction at all.
    """
    classes, numbers = np.unique(labels, return_inverse=True)
    source = CachedSource(torch.from_numpy(features)[:, None].to(device))
    given = torch.from_numpy(numbers.astype(np.int64)).to(device)
    copies = None if groups is None else torch.from_numpy(groups).to(device)
    context = PhaseContext(seed=config.seed, device=device, checkpoint=None)
    parts: dict[str, Any] = {"class_count": len(classes), "context": context}
    beliefs = None
    if config.needs_beliefs:
        beliefs = find_beliefs(source, given, **parts, config=config, groups=copies)
    trusted = choose_rows(beliefs, config=config)
    width = count_directions(features if trusted is None else features[trusted.numpy()])
    if width == 0:
        return {}
    width = min(width, config.embedding.embedding_dim)
    config = replace(config, embedding=replace(config.embedding, embedding_dim=width))
    trained, _ = train_head(source, given, **parts, config=config, beliefs=beliefs)
    images = LabelledFeatures(features, numbers.astype(np.int64), groups)
    return {TRAINED: trained.cpu(), **fit_rivals(images, embedding_dim=width)}


def _compare(hits: Mapping[str, list[Scores]], *, seed: int) -> TrialPart | None:
    """All folds' queries together; None without any."""
    if not hits:
        return None
    joined = {name: np.concatenate(parts) for name, parts in hits.items()}
    recall = {name: float(found.mean()) for name, found in joined.items()}
    best = max((name for name in recall if name not in (TRAINED, REFERENCE)), key=lambda name: recall[name])
    difference = paired_bootstrap(joined[TRAINED], joined[best], seed=seed)
    return TrialPart(len(joined[TRAINED]), recall, best, difference)
