"""What a trial and the network stage hold out: whole classes, and images of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MANY_CLASSES, FEW_FOLDS = 25, 3
LEAST_CLASSES = 4  # to search two and train on two
IMAGE_SHARE, LEAST_IMAGES = 0.2, 3
LEAST_CLASSES_OF_NETWORK, NETWORK_SHARE = 20, 0.1  # of the network stage: two classes at least, to be told apart


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of one fold: what trains, the images of classes held out, images held out of the classes trained."""

    train: np.ndarray
    unseen: np.ndarray
    seen: np.ndarray


def split_for_trial(labels: np.ndarray, *, seed: int, scenes: np.ndarray | None = None) -> Iterator[Split]:
    """The folds: fifths of the classes, as many as hold out 25 classes; fewer than 25 all take a turn, in three folds.

    Below four classes none can be held out, and images alone are. Of every class that trains, a fifth of the images is
    held out, one at least, and none of fewer than three. With scenes it is those of whole scenes, of half a class's at
    most: images that train while others of their scene are searched are left out.

    Args:
        labels: (N,) int64 in 0..C-1.
        scenes: (N,) int64, the same for photos of one scene; None: every photo is a scene of its own.
    """
    generator = np.random.default_rng(seed)
    scenes = np.arange(len(labels)) if scenes is None else scenes
    classes = generator.permutation(np.unique(labels))
    folds, held_in = FEW_FOLDS, np.arange(len(classes)) % FEW_FOLDS
    if len(classes) >= MANY_CLASSES:
        folds, held_in = -(-MANY_CLASSES // (len(classes) // 5)), np.arange(len(classes)) % 5
    elif len(classes) < LEAST_CLASSES:
        folds, held_in = 1, np.ones(len(classes), dtype=np.int64)
    elif len(classes) < 2 * FEW_FOLDS:
        folds, held_in = 2, np.arange(len(classes)) % 2
    for fold in range(folds):
        yield hold_out(
            labels, classes=classes[held_in == fold], share=IMAGE_SHARE, generator=generator, scenes=scenes,
            order=classes,
        )  # fmt: skip


def split_for_network(labels: np.ndarray, *, seed: int, scenes: np.ndarray | None = None) -> Split:
    """What the network stage holds out: a tenth of the classes where there are 20 or more, and of the others' images.

    Arguments and scenes as in `split_for_trial`.
    """
    generator = np.random.default_rng((seed, 1))  # not the classes that the trial holds out first
    classes = generator.permutation(np.unique(labels))
    held = classes[: len(classes) // 10] if len(classes) >= LEAST_CLASSES_OF_NETWORK else classes[:0]
    scenes = np.arange(len(labels)) if scenes is None else scenes
    return hold_out(labels, classes=held, share=NETWORK_SHARE, generator=generator, scenes=scenes, order=classes)


def hold_out(
    labels: np.ndarray,
    *,
    classes: np.ndarray,
    share: float,
    generator: np.random.Generator,
    scenes: np.ndarray,
    order: np.ndarray,
) -> Split:
    """All images of some classes, and a share of those of every other class, in `order`."""
    unseen = np.isin(labels, classes)
    seen = np.zeros(len(labels), dtype=bool)
    for label in order[~np.isin(order, classes)]:
        rows = np.flatnonzero(labels == label)
        seen[rows[np.isin(scenes[rows], _choose_scenes(scenes[rows], generator, share=share))]] = True
    train = ~np.isin(scenes, scenes[unseen | seen])
    return Split(*(np.flatnonzero(mask) for mask in (train, unseen, seen)))


def _choose_scenes(scenes: np.ndarray, generator: np.random.Generator, *, share: float) -> np.ndarray:
    """Scenes of one class that are held out, with a share of its images."""
    numbers, sizes = np.unique(scenes, return_counts=True)
    order = generator.permutation(len(numbers))
    if len(scenes) < LEAST_IMAGES:
        return numbers[:0]
    wanted = max(1, int(share * len(scenes)))
    enough = int(np.searchsorted(sizes[order].cumsum(), wanted)) + 1
    return numbers[order[: min(enough, len(numbers) // 2)]]
