"""Seeded label noise for experiments; only the labels of drawn samples change, always to another class."""

import csv
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage

from index.arrays import Floats, normalise_rows
from index.errors import InputError
from index.text import printable_path
from index.vectors.exact import search
from training.options.config import LabelNoise

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
NEAREST = 5  # classes that nearest-class noise draws from


def read_parents(path: Path) -> dict[str, str]:
    """Class hierarchy from a UTF-8 CSV with the columns `class` and `parent`: parents by class, empty at a root."""
    shown = printable_path(path)
    if not path.is_file():
        raise InputError("no such file; expected a CSV of class,parent", at=path)
    parents, lines = dict[str, str](), dict[str, int]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"class", "parent"} <= set(columns):
                raise InputError(f"expected a header with the columns class,parent; found {columns}", at=path)
            for row in rows:
                node, parent = (row["class"] or "").strip(), (row["parent"] or "").strip()
                if not node:
                    raise InputError("the class is empty", at=path, where=f"line {rows.line_num}")
                if node in parents:
                    raise InputError(
                        f"{shown}, line {rows.line_num}: {printable_path(node)!r} stands in line {lines[node]} "
                        f"already, with the parent {printable_path(parents[node])!r}; keep one row"
                    )
                parents[node], lines[node] = parent, rows.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a readable UTF-8 CSV file: {error}", at=path) from error
    for start in parents:
        node, climbed = start, {start}
        while above := parents.get(node):
            if above in climbed:
                raise InputError(
                    f"{shown}, line {lines[node]}: the parent {printable_path(above)!r} of {printable_path(node)!r} "
                    "lies below it: the hierarchy runs in a circle"
                )
            climbed.add(above)
            node = above
    return parents


def find_relatives(parents: Mapping[str, str], classes: Sequence[str]) -> list[list[list[int]]]:
    """For every class, the branches that it may be confused with, in a tree of these classes only.

    These are the other children of its first ancestor with several children, each as the numbers of the classes below.
    Every class is a leaf below a node of its own, so that a class may be the ancestor of others: "dog" is then a
    sibling of the breeds below the node dog. Classes under different roots are unrelated.

    Args:
        parents: of a tree, as of `read_parents`; a node without a parent is a root.
    """
    known = {*parents, *parents.values()}
    if missing := [name for name in classes if name not in known]:
        named = ", ".join(repr(printable_path(name)) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(
            f"--hierarchy: {len(missing)} of the classes not found: {named}; add a row class,parent for each"
        )
    below: dict[str, dict[str | int, list[int]]] = defaultdict(dict)  # of a node, its children and the classes there
    for number, name in enumerate(classes):
        child: str | int = number
        node = name
        while node:
            below[node].setdefault(child, []).append(number)
            child, node = node, parents.get(node, "")
    relatives = []
    for number, name in enumerate(classes):
        child, node = number, name
        while node and len(below[node]) == 1:
            child, node = node, parents.get(node, "")
        if not node:
            raise InputError(
                f"--hierarchy: class {printable_path(name)!r} has no relative: it is alone under its root "
                f"{printable_path(child)!r}; give that a parent which other classes share"
            )
        relatives.append([numbers for other, numbers in below[node].items() if other != child])
    return relatives


def add_label_noise(
    labels: Labels,
    *,
    noise: LabelNoise,
    classes: Sequence[str],
    seed: int,
    features: Floats | None = None,
    parents: Mapping[str, str] | None = None,
) -> Labels:
    """Give some samples a wrong label: a new (N,) int64 array of numbers of `classes`.

    uniform: exactly round(rate N) samples get one drawn uniformly from the other classes.
    bernoulli: every sample on its own gets such a one, with probability `rate`.
    nearest-class: exactly round(rate N) get one of the `NEAREST` classes most like their own, drawn uniformly.
    semantic: exactly round(rate N) get that of a relative (ProcSim, section 3.6). From the sample's class we walk up to
        the first node that has several children, and draw uniformly among its other children. The paper draws "the
        label among all children" there, but such a child may be an inner node: we then draw uniformly among the
        classes below it, so that every branch is as likely as any other, however many classes it has.
    small-cluster: exactly round(rate N) get that of another class, in clusters of similar images (PRISM, section 4):
        classes drawn at random lose all of their images, until enough labels are wrong. Their images then belong to no
        class that trains (open-set noise).
    open-set: as small-cluster, but every image gets a label of its own.

    Args:
        features: (N, F) float32, for nearest-class and small-cluster.
        parents: class hierarchy for semantic, as of `find_relatives`.
    """
    count, noisy, generator = len(classes), labels.copy(), np.random.default_rng(seed)
    if count < 2:
        raise InputError(f"label noise needs at least two classes, got {count}")
    if noise.kind in ("small-cluster", "open-set"):
        wrong, alike = round(noise.rate * len(labels)), features if noise.kind == "small-cluster" else None
        return _scatter_classes(alike, labels, wrong, count=count, generator=generator)
    if noise.kind == "bernoulli":
        chosen = np.flatnonzero(generator.random(len(labels)) < noise.rate)
    else:
        chosen = generator.permutation(len(labels))[: round(noise.rate * len(labels))]
    if noise.kind == "nearest-class" and len(chosen):
        assert features is not None
        present, neighbours = _find_nearest(features, labels)
        own = np.searchsorted(present, labels[chosen])
        noisy[chosen] = neighbours[own, generator.integers(neighbours.shape[1], size=len(chosen))]
    elif noise.kind == "semantic":
        relatives = find_relatives(parents or {}, classes)
        for sample in chosen:
            branches = relatives[labels[sample]]
            branch = branches[generator.integers(len(branches))]
            noisy[sample] = branch[generator.integers(len(branch))]
    else:
        shift = generator.integers(1, count, size=len(chosen))  # never 0: the label always changes
        noisy[chosen] = (labels[chosen] + shift) % count
    return noisy


def _scatter_classes(
    features: Floats | None, labels: Labels, wrong: int, *, count: int, generator: np.random.Generator
) -> Labels:
    """(N,) labels of which `wrong` are wrong, as classes are drawn whose clusters go to other classes.

    A class of n images has n / 2 clusters, as in the paper, of which we take Ward's, as it does not name a method; n
    without features. A cluster goes to a random class that is not drawn; where all are, to any other class. The last
    class drawn loses as many images as are missing.
    """
    noisy, present = labels.copy(), np.unique(labels)
    order = generator.permutation(present)
    drawn = order[: int(np.searchsorted(np.bincount(labels, minlength=count)[order].cumsum(), wrong)) + (wrong > 0)]
    kept = np.setdiff1d(present, drawn)
    for own in drawn:
        rows = np.flatnonzero(labels == own)
        clusters = np.arange(len(rows)) if features is None else _cluster(features[rows])
        shuffled = generator.permutation(clusters.max() + 1)[clusters]
        taken = np.argsort(shuffled, kind="stable")[:wrong]  # whole clusters, but for the last one
        targets = kept if len(kept) else np.delete(np.arange(count), own)
        noisy[rows[taken]] = generator.choice(targets, size=clusters.max() + 1)[shuffled[taken]]
        wrong -= len(taken)
    return noisy


def _cluster(features: Floats) -> Labels:
    """(n,) numbers from 0 of n / 2 clusters of similar rows, fewer where rows are equal."""
    if len(features) < 2:
        return np.zeros(len(features), dtype=np.int64)
    merges = linkage(normalise_rows(features).astype(np.float64), method="ward")
    return np.asarray(fcluster(merges, t=max(1, len(features) // 2), criterion="maxclust"), dtype=np.int64) - 1


def _find_nearest(features: Floats, labels: Labels) -> tuple[Labels, Labels]:
    """Present classes (C,), and for each the numbers (C, K) of the most similar ones.

    Similarity is the cosine of the class means of L2-normalised features. Classes without samples are never near; where
    fewer than `NEAREST` others have some, all of those are.
    """
    present = np.unique(labels)
    if len(present) == 1:
        raise InputError("nearest-class noise needs samples of at least two classes, got one")
    width = min(NEAREST, len(present) - 1)
    if width == len(present) - 1:
        logger.warning("nearest-class noise among %d classes is uniform: all others are nearest", len(present))
    rows_by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels)[present])[:-1])
    means = np.stack([normalise_rows(features[rows]).mean(axis=0, dtype=np.float64) for rows in rows_by_class])
    unit = normalise_rows(means.astype(np.float32))
    return present, present[search(unit, unit, k=width, own=np.arange(len(present))).rows]
