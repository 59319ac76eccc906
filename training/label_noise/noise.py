"""Seeded label noise for experiments, and what it did to the labels.

Every kind draws from the seed alone, and only the labels of the drawn samples change: always to another class.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, normalise_rows
from index.errors import InputError
from index.vectors.exact import search
from training.label_noise.hierarchy import Hierarchy
from training.options.config import NOISE_KINDS, LabelNoise

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
_MOST_PAIRS = 20


def add_label_noise(
    labels: Labels,
    *,
    noise: LabelNoise,
    classes: Sequence[str],
    features: Floats,
    hierarchy: Hierarchy | None,
    seed: int,
) -> Labels:
    """Noise of the asked kind.

    Args:
        labels: (N,) int64 numbers of `classes`.
        noise: the kind, and the share of the samples.
        classes: C names.
        features: (N, F) float32, for nearest-class noise.
        hierarchy: for semantic noise.

    Returns:
        (N,) int64, a new array.
    """
    count = len(classes)
    if noise.kind == "uniform":
        return add_uniform_noise(labels, class_count=count, rate=noise.rate, seed=seed)
    if noise.kind == "bernoulli":
        return add_bernoulli_noise(labels, class_count=count, rate=noise.rate, seed=seed)
    if noise.kind == "nearest-class":
        return add_nearest_class_noise(labels, features=features, class_count=count, rate=noise.rate, seed=seed)
    if noise.kind != "semantic":
        raise InputError(f"label noise must be one of {', '.join(NOISE_KINDS)}, got {noise.kind!r}")
    if hierarchy is None:
        raise InputError("semantic label noise needs a class hierarchy, got none")
    return add_semantic_noise(labels, classes=classes, hierarchy=hierarchy, rate=noise.rate, seed=seed)


def add_uniform_noise(labels: Labels, *, class_count: int, rate: float, seed: int) -> Labels:
    """Give exactly round(rate * N) samples a wrong label, drawn uniformly from the other classes.

    Args:
        labels: (N,) int64 in 0..class_count-1.
        class_count: C, at least 2.
        rate: share of the samples in 0..1.

    Returns:
        (N,) int64, a new array.

    Raises:
        InputError: one class only, or a rate outside 0..1.
    """
    _check(class_count=class_count, rate=rate)
    generator = np.random.default_rng(seed)
    chosen = _choose_exactly(len(labels), rate=rate, generator=generator)
    return _shift(labels, chosen, class_count=class_count, generator=generator)


def add_bernoulli_noise(labels: Labels, *, class_count: int, rate: float, seed: int) -> Labels:
    """Give every sample on its own, with probability `rate`, a wrong label drawn uniformly from the other classes.

    Arguments, result and errors as of `add_uniform_noise`.
    """
    _check(class_count=class_count, rate=rate)
    generator = np.random.default_rng(seed)
    chosen = np.flatnonzero(generator.random(len(labels)) < rate)
    return _shift(labels, chosen, class_count=class_count, generator=generator)


def add_nearest_class_noise(
    labels: Labels, *, features: Floats, class_count: int, rate: float, seed: int, nearest: int = 5
) -> Labels:
    """Give exactly round(rate * N) samples a label drawn uniformly from the `nearest` classes most like their own.

    Likeness is the cosine of class means, of L2-normalised features under the labels given in. Classes without
    samples are never drawn; where fewer than `nearest` others have some, all of those are.

    Args:
        labels: (N,) int64 in 0..class_count-1.
        features: (N, F) float32.
        class_count: C, at least 2.
        rate: share of the samples in 0..1.
        nearest: at least 1.

    Returns:
        (N,) int64, a new array.
    """
    _check(class_count=class_count, rate=rate)
    if nearest < 1:
        raise InputError(f"nearest-class noise needs at least one nearest class, got {nearest}")
    if len(features) != len(labels):
        raise InputError(f"nearest-class noise needs {len(labels)} feature rows, one a label; got {len(features)}")
    present = np.unique(labels)
    if len(present) == 1:
        raise InputError("nearest-class noise needs samples of at least two classes, got one")
    generator = np.random.default_rng(seed)
    chosen = _choose_exactly(len(labels), rate=rate, generator=generator)
    noisy = labels.copy()
    if len(chosen):
        means = normalise_rows(_average_classes(features, labels))
        width = min(nearest, len(present) - 1)
        if width == len(present) - 1:
            logger.warning("nearest-class noise among %d classes is uniform: all others are nearest", len(present))
        neighbours = present[search(means, means, k=width, own=np.arange(len(present))).rows]  # (present, width)
        own = np.searchsorted(present, labels[chosen])
        noisy[chosen] = neighbours[own, generator.integers(width, size=len(chosen))]
    return noisy


def add_semantic_noise(
    labels: Labels, *, classes: Sequence[str], hierarchy: Hierarchy, rate: float, seed: int
) -> Labels:
    """Give exactly round(rate * N) samples the label of a relative (ProcSim, section 3.6).

    The hierarchy is filtered to `classes`. From the sample's class we walk up to the first node that has several
    children, and draw uniformly among its other children. The paper draws "the label among all children" there,
    but such a child may be an inner node: we then draw uniformly among the classes below it, so that every branch
    is as likely as any other, however many classes it has.

    Args:
        labels: (N,) int64 numbers of `classes`.
        classes: C names.
        hierarchy: with all of the classes.
        rate: share of the samples in 0..1.

    Returns:
        (N,) int64, a new array.

    Raises:
        InputError: a class is alone under its root or not in the hierarchy, one class only, or a rate outside 0..1.
    """
    _check(class_count=len(classes), rate=rate)
    relatives = hierarchy.relatives(classes)
    generator = np.random.default_rng(seed)
    noisy = labels.copy()
    for sample in _choose_exactly(len(labels), rate=rate, generator=generator):
        branches = relatives[labels[sample]]
        branch = branches[generator.integers(len(branches))]
        noisy[sample] = branch[generator.integers(len(branch))]
    return noisy


def _check(*, class_count: int, rate: float) -> None:
    if class_count < 2:
        raise InputError(f"label noise needs at least two classes, got {class_count}")
    if not 0 <= rate <= 1:
        raise InputError(f"the noise rate must be in 0..1, got {rate}")


def _choose_exactly(count: int, *, rate: float, generator: np.random.Generator) -> Labels:
    return generator.permutation(count)[: round(rate * count)]


def _shift(labels: Labels, chosen: Labels, *, class_count: int, generator: np.random.Generator) -> Labels:
    shift = generator.integers(1, class_count, size=len(chosen))  # never 0: the label always changes
    noisy = labels.copy()
    noisy[chosen] = (labels[chosen] + shift) % class_count
    return noisy


def _average_classes(features: Floats, labels: Labels) -> Floats:
    """(present classes, F) float32 means of the L2-normalised features, in the order of the class numbers."""
    ends = np.cumsum(np.unique(labels, return_counts=True)[1])
    groups = np.split(np.argsort(labels, kind="stable"), ends[:-1])
    return np.stack([normalise_rows(features[rows]).mean(axis=0, dtype=np.float64) for rows in groups]).astype(
        np.float32
    )


def describe_noise(given: Labels, used: Labels, *, classes: Sequence[str]) -> dict[str, Any]:
    """What noise did to labels, as report.json has it; both (N,) int64 numbers of `classes`.

    Emptied classes had samples and have none now; they stay classes, C is fixed. Of a class, `samples` were given its
    label, of which some were relabelled away; some of others are wrongly labelled with it now, and `purity` is the
    share of the right ones among all that carry it, None where nothing does. The 20 most frequent swaps come first.
    """
    count, wrong = len(classes), given != used
    before, after = np.bincount(given, minlength=count), np.bincount(used, minlength=count)
    away, wrongly = np.bincount(given[wrong], minlength=count), np.bincount(used[wrong], minlength=count)
    pairs, frequency = np.unique(given[wrong] * count + used[wrong], return_counts=True)
    top = np.argsort(-frequency, kind="stable")[:_MOST_PAIRS]
    return {
        "samples": len(given),
        "wrong": int(wrong.sum()),
        "rate": float(wrong.mean()) if len(given) else 0.0,
        "emptied_classes": int(((before > 0) & (after == 0)).sum()),
        "classes": [
            {
                "name": name,
                "samples": int(before[c]),
                "relabelled_away": int(away[c]),
                "wrongly_labelled": int(wrongly[c]),
                "purity": float((after[c] - wrongly[c]) / after[c]) if after[c] else None,
            }
            for c, name in enumerate(classes)
        ],
        "swaps": [
            {"given": classes[pairs[i] // count], "used": classes[pairs[i] % count], "samples": int(frequency[i])}
            for i in top
        ],
    }
