"""Seeded label noise for experiments, and what it did to the labels.

Every kind draws from the seed alone, and only the labels of the drawn samples change: always to another class.
"""

from __future__ import annotations

import csv
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, normalise_rows
from index.errors import InputError
from index.text import printable_path
from index.vectors.exact import search
from training.options.config import NOISE_KINDS, LabelNoise

# Of every node its children, and of every child the numbers of the classes below it; a leaf is its own number.
_Branches = dict[str, dict[str | int, list[int]]]


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A forest with the classes as leaves.

    Every class is a leaf below a node of its own, so that a class may also be the ancestor of others: "dog" is
    then a sibling of the breeds below the node dog.

    Attributes:
        paths: of every class, the nodes from its own up to its root. A node has the same parent in all paths.
    """

    paths: Mapping[str, tuple[str, ...]]

    def relatives(self, classes: Sequence[str]) -> list[list[list[int]]]:
        """For every class, the branches that it may be confused with, in a tree of these classes only.

        They hang from the first node on the way up from the class that has several children: its children but
        the one that the class lies in, each as the numbers of the classes below it.
        """
        below: _Branches = defaultdict(dict)
        for number, name in enumerate(classes):
            if name not in self.paths:
                raise InputError(f"class {printable_path(name)!r} is not in the hierarchy; add it there")
            child: str | int = number
            for node in self.paths[name]:
                below[node].setdefault(child, []).append(number)
                child = node
        return [self._branches(number, name, below) for number, name in enumerate(classes)]

    def _branches(self, number: int, name: str, below: _Branches) -> list[list[int]]:
        child: str | int = number
        for node in self.paths[name]:
            if len(below[node]) > 1:
                return [numbers for other, numbers in below[node].items() if other != child]
            child = node
        raise InputError(
            f"class {printable_path(name)!r} has no relative in the hierarchy: it is alone under its root "
            f"{printable_path(str(child))!r}; give that a parent which other classes share"
        )


def read_hierarchy(path: Path, *, classes: Sequence[str]) -> Hierarchy:
    """The ancestors of the classes, from a CSV file.

    It is UTF-8, has the columns `class` and `parent` (others are ignored) and a row for every class and inner node; a
    node with an empty parent, or without a row, is a root. Several roots are allowed and are not joined: classes under
    different roots are unrelated.
    """
    if not path.is_file():
        raise InputError(f"{_shown(path)}: no such file; expected a CSV of class,parent")
    parents, lines = _read_parents(path)
    known = {*parents, *parents.values()}
    if missing := [name for name in classes if name not in known]:
        named = ", ".join(repr(printable_path(name)) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(
            f"{_shown(path)}: {len(missing)} of the classes not found: {named}; add a row class,parent for each"
        )
    for node in parents:  # all of them: a cycle is an error wherever it lies
        _climb(node, parents, path=path, lines=lines)
    return Hierarchy({name: _climb(name, parents, path=path, lines=lines) for name in classes})


def _shown(path: Path) -> str:
    return printable_path(str(path))


def _read_parents(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    parents: dict[str, str] = {}  # empty at a root
    lines: dict[str, int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"class", "parent"} <= set(columns):
                raise InputError(
                    f"{_shown(path)}: expected a header with the columns class,parent; found {columns}"
                )
            for row in rows:
                node, parent = (row["class"] or "").strip(), (row["parent"] or "").strip()
                where = f"{_shown(path)}, line {rows.line_num}"
                if not node:
                    raise InputError(f"{where}: the class is empty")
                if node in parents:
                    raise InputError(
                        f"{where}: {printable_path(node)!r} stands in line {lines[node]} already, with the parent "
                        f"{printable_path(parents[node])!r}; keep one row"
                    )
                parents[node], lines[node] = parent, rows.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{_shown(path)}: not a readable UTF-8 CSV file: {error}") from error
    return parents, lines


def _climb(node: str, parents: Mapping[str, str], *, path: Path, lines: Mapping[str, int]) -> tuple[str, ...]:
    climbed = {node: None}  # a dict for its order
    while above := parents.get(node):
        if above in climbed:
            raise InputError(
                f"{_shown(path)}, line {lines[node]}: the parent {printable_path(above)!r} of "
                f"{printable_path(node)!r} lies below it: the hierarchy runs in a circle"
            )
        climbed[above] = None
        node = above
    return tuple(climbed)


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
    """(N,) int64 labels with noise of a kind, as the functions below have it."""
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

    Arguments as of `add_uniform_noise`; features are (N, F) float32.
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

    Labels are (N,) int64 numbers of the C classes, all of which the hierarchy has.
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
