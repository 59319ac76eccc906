"""Groups of images that show one scene: shots of a burst, and near-duplicates.

Groups come from what the user says, else from file names and times, else from similarity alone. Close numbers in names
or close times prove little: a folder may be numbered at random, and copying gives all files one time. So such pairs
count only from the similarity on at which they are twice as frequent as other pairs of their label, beyond chance: at
least one of two is then similar because it is close.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Floats, Ids, Labels, Mask, connect_rows
from index.sources.table_rows import as_text
from index.vectors.exact import search_labels

COLUMN = "group"  # of a table, or of a gallery's metadata
COPIES = "copies"  # `found_by` where nothing else groups
WORTHLESS = 0.05  # ungrouped Recall@1 that is higher by this much tells nothing about new photos
_YARDSTICKS = (0.75, 0.9, 0.95)  # of the photos have their nearest of another label farther away
_MOST_CONNECTED = 0.5  # pairs of a label in one group; above, groups would be labels
_ERRORS, _POINTS = 5.0, 0.1
_MOST = 10_000  # photos, all pairs of which are multiplied up to five times
_MOST_PAIRS = 5_000_000
_DRAWN_PAIRS = 20_000
_PRODUCTS_AT_ONCE = 1 << 23

NUMBERS_APART = 3  # in a burst of which a shot or two were thrown away
SECONDS_APART = 60.0  # enough to photograph a thing from several sides
_LIFT = 2.0  # how much more frequent near pairs must be
_LEAST_EXPECTED = 5.0  # near pairs in a slice of similarities
_DEVIATIONS = 4.0  # beyond which an excess is not chance
_FAR_PAIRS = 200_000  # drawn at most
_PAIRS_AT_ONCE = 8192
_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})([^0-9]*)", re.ASCII | re.DOTALL)
Pairs = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
_Near = Callable[[Ids, Ids], Mask]


@dataclass(frozen=True, slots=True)
class GroupSources:
    """Sources of the groups of N images, beside their embeddings."""

    names: Sequence[str]  # paths of their files
    times: Seconds  # (N,) float64 seconds at which they were taken or written; NaN where unknown
    given: Sequence[str | None] | None = None  # the column, the same text for one group; None: no such column
    copies: Ids | None = None  # (N,) int64, the same for copies of each other; None where none were looked for
    column: str = COLUMN


def name_group(metadata: Mapping[str, Any] | None, column: str | None = None) -> str | None:
    """The group that the metadata of an image gives; None where it gives none."""
    value = (metadata or {}).get(column or COLUMN)
    return None if isinstance(value, dict | list) else as_text(value).strip() or None


def number_equal(texts: Sequence[str]) -> Ids:
    """(N,) int64, the same for equal texts."""
    return np.unique(np.array(texts), return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Groups:
    """Group of each image."""

    numbers: Ids  # (N,) int64, the same for images of one group
    found_by: str  # where the groups come from, in words
    is_certain: bool  # whether they were given, or names or times show them; else the images are only very similar
    shots: Ids  # (N,) int64: `numbers`, or where they are not certain narrower groups of the most similar of one label

    @property
    def images(self) -> int:
        """Count of the images that share their group with another one."""
        sizes = np.unique(self.numbers, return_counts=True)[1]
        return int(sizes[sizes > 1].sum())

    @property
    def count(self) -> int:
        """Count of the groups of more than one image."""
        return int((np.unique(self.numbers, return_counts=True)[1] > 1).sum())

    def to_json(self) -> dict[str, object]:
        return {"found_by": self.found_by, "groups": self.count, "images": self.images}


def find_groups(vectors: Floats, labels: Labels, sources: GroupSources, *, sets: Ids | None = None) -> Groups | None:
    """Groups as the user gives them, else by names and times, else by similarity where that makes a difference.

    Copies are of one group in any case. None where nothing points to groups. Between (N,) `sets`, different for
    training and validation images, a series of file names may be split under the same label; None: a series is within a
    folder.
    """
    known = find_known_groups(vectors, labels, sources, sets=sets)
    if known is not None or (sources.given is not None and any(sources.given)):
        return known
    similar = find_look_alikes(vectors, labels)
    if similar is not None:
        groups, shots = (_join_copies(groups, sources.copies) for groups in similar)
        return Groups(groups, "similarity alone", False, shots)
    return _join(np.empty((0, 2), dtype=np.int64), sources, found_by="")


def find_known_groups(
    vectors: Floats, labels: Labels, sources: GroupSources, *, sets: Ids | None = None
) -> Groups | None:
    """Groups that the user gives, or else those by names and times; with copies."""
    if sources.given is not None and any(sources.given):
        first: dict[str, int] = {}
        pairs = [(first.setdefault(name, row), row) for row, name in enumerate(sources.given) if name]
        given = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return _join(given, sources, found_by=f"the column {sources.column!r}")
    inside = pair_by_name(sources.names)
    by_name = keep_alike(inside, vectors, labels)
    if sets is not None:
        across = pair_across_sets(sources.names, labels=labels, sets=sets)
        by_name = np.concatenate([by_name, keep_alike(across, vectors, labels, others=inside)])
    by_time = keep_alike(pair_by_time(sources.times), vectors, labels)
    found_by = [
        name for name, pairs in (("numbers in file names", by_name), ("times within a minute", by_time)) if len(pairs)
    ]
    if not found_by:
        return None
    return _join(np.concatenate([by_name, by_time]), sources, found_by=" and ".join(found_by))


def _join(pairs: Pairs, sources: GroupSources, *, found_by: str) -> Groups | None:
    """Groups of connected pairs and copies; None where no two images are of one."""
    groups = connect_rows(pairs, count=len(sources.names))
    joined = _join_copies(groups, sources.copies)
    if not np.array_equal(groups, joined):
        found_by = f"{found_by} and {COPIES}" if found_by else COPIES
    found = Groups(joined, found_by, True, joined)
    return found if found.count else None


def _join_copies(groups: Ids, copies: Ids | None) -> Ids:
    if copies is None:
        return groups
    first = np.unique(copies, return_index=True, return_inverse=True)
    rows = np.arange(len(groups))
    pairs = np.stack([np.concatenate([rows, rows]), np.concatenate([groups, first[1][first[2]]])], axis=1)
    return connect_rows(pairs, count=len(groups))


def find_look_alikes(vectors: Floats, labels: Labels) -> tuple[Ids, Ids] | None:
    """Groups of photos that are very similar, and narrower shots of one label, both (N,) int64; None without any.

    The yardstick is the nearest photo of another label, which mostly shows another scene. Photos as similar as the
    nearest quarter of these form a group, whatever their labels; if that would connect most pairs of a label, the
    nearest tenth or twentieth is used. Shots, for training, are photos of one label within the nearest twentieth.

    No embedding separates one scene from similar things, so groups count only if the error rate of grouped searches is
    at least five times as high, and ten points higher. Without bursts it is 1.0 to 2.0 times as high on photos of
    clothes and cars and Tiny-ImageNet, up to 4.7 times for random vectors.
    """
    rows = np.flatnonzero(labels != UNLABELLED)
    if len(rows) > _MOST or len(np.unique(labels[rows])) < 2:
        return None
    vectors, known = vectors[rows], labels[rows]
    same, other = (nearest.cosines[:, 0] for nearest in search_labels(vectors, known, k=1))
    groups = _connect(vectors, known, yardsticks=other)
    if groups is None:
        return None
    same_grouped, other_grouped = (
        nearest.cosines[:, 0] for nearest in search_labels(vectors, known, k=1, groups=groups)
    )
    findable, findable_grouped = np.isfinite(same), np.isfinite(same_grouped)
    if not findable_grouped.any():
        return None
    errors = float((same < other)[findable].mean())
    errors_grouped = float((same_grouped < other_grouped)[findable_grouped].mean())
    if not makes_a_difference(errors, errors_grouped):
        return None
    close = _pair_above(vectors, float(np.quantile(other, _YARDSTICKS[-1])))
    assert close is not None  # fewer than those of the groups
    shots = connect_rows(close[known[close[:, 0]] == known[close[:, 1]]], count=len(rows))
    wide, narrow = np.arange(len(labels), dtype=np.int64), np.arange(len(labels), dtype=np.int64)
    wide[rows], narrow[rows] = rows[groups], rows[shots]
    return wide, narrow


def makes_a_difference(errors: float, errors_grouped: float) -> bool:
    """Whether the error rate of grouped searches is so much higher that similar things cannot be the reason."""
    return errors_grouped >= max(_ERRORS * errors, errors + _POINTS)


def _connect(vectors: Floats, labels: Labels, *, yardsticks: Floats) -> Ids | None:
    """(n,) groups of connected photos under the widest yardstick that leaves most pairs of a label unconnected."""
    drawn = draw_same_label(labels, count=_DRAWN_PAIRS, seed=0)
    typical = np.median(measure(drawn, vectors)) if len(drawn) else np.inf
    for level in np.quantile(yardsticks, _YARDSTICKS).tolist():
        if typical >= level or (pairs := _pair_above(vectors, level)) is None:
            continue
        groups = connect_rows(pairs, count=len(labels))
        if (groups[drawn[:, 0]] == groups[drawn[:, 1]]).mean() < _MOST_CONNECTED:
            return groups
    return None


def _pair_above(vectors: Floats, level: float) -> Pairs | None:
    """(P, 2) rows with a product above a level; None if there are more than `_MOST_PAIRS`."""
    parts, found = [], 0
    size = max(1, _PRODUCTS_AT_ONCE // len(vectors))
    for start in range(0, len(vectors), size):
        products = vectors[start : start + size] @ vectors[start:].T
        left, right = np.nonzero(products > level)
        pairs = np.stack([left, right], axis=1)[left < right] + start
        parts.append(pairs.astype(np.int64))
        found += len(pairs)
        if found > _MOST_PAIRS:
            return None
    return np.concatenate(parts)


def pair_by_name(names: Sequence[str]) -> Pairs:
    """(P, 2) rows of files in one folder whose names differ in their last number alone, by `NUMBERS_APART` at most.

    >>> pair_by_name(["a/img_7.jpg", "a/img_8.jpg", "a/img_90.jpg", "b/img_7.jpg"]).tolist()
    [[0, 1]]
    """
    return _pair_numbers(names, [str(PurePath(name).parent) for name in names])


def pair_across_sets(names: Sequence[str], *, labels: Labels, sets: Ids) -> Pairs:
    """(P, 2) rows of one label in different sets whose names have close numbers, as of a series that was split.

    >>> names = ["train/a/img_7.jpg", "test/a/img_8.jpg", "test/b/img_8.jpg"]
    >>> pair_across_sets(names, labels=np.array([0, 0, 1]), sets=np.array([0, 1, 1])).tolist()
    [[0, 1]]
    """
    pairs = _pair_numbers(names, labels.tolist())
    left, right = pairs.T
    across: Pairs = pairs[(sets[left] != sets[right]) & (labels[left] != UNLABELLED)]
    return across


def _pair_numbers(names: Sequence[str], kinds: Sequence[Hashable]) -> Pairs:
    """(P, 2) rows of one kind whose file names differ in their last number alone, by `NUMBERS_APART` at most."""
    series: dict[tuple[Hashable, str, str], int] = {}
    rows, keys, numbers = [], [], []
    for row, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if found := _NUMBERED.fullmatch(PurePath(name).stem):
            before, number, after = found.groups()
            rows.append(row)
            keys.append(series.setdefault((kind, before, after), len(series)))
            numbers.append(int(number))
    if not rows:
        return np.empty((0, 2), dtype=np.int64)
    key, number = np.array(keys, dtype=np.int64), np.array(numbers, dtype=np.int64)
    order = np.lexsort((number, key))
    key, number = key[order], number[order]
    return _pair_neighbours(
        np.array(rows, dtype=np.int64)[order],
        lambda a, b: (key[a] == key[b]) & (number[b] - number[a] <= NUMBERS_APART),
    )


def pair_by_time(times: Seconds) -> Pairs:
    """(P, 2) rows taken within `SECONDS_APART` of each other, with few shots between them; NaN: time unknown.

    Rows of equal time are in random order, as files that were copied together have no order.

    >>> pair_by_time(np.array([5.0, 900.0, 31.0, np.nan])).tolist()
    [[0, 2]]
    """
    order = np.lexsort((np.random.default_rng(0).permutation(len(times)), times))
    order = order[np.isfinite(times[order])].astype(np.int64)
    known = times[order]
    return _pair_neighbours(order, lambda a, b: known[b] - known[a] <= SECONDS_APART)


def keep_alike(pairs: Pairs, vectors: Floats, labels: Labels, *, others: Pairs | None = None) -> Pairs:
    """Similar pairs among (P, 2) close pairs of rows; none where close pairs are no more similar than others.

    The level is found from pairs of one label, without the pairs `others`, which are close in another way.
    """
    if not len(pairs):
        return pairs
    near = measure(pairs, vectors)
    of_label = (labels[pairs[:, 0]] == labels[pairs[:, 1]]) & (labels[pairs[:, 0]] != UNLABELLED)
    known = pairs if others is None else np.concatenate([pairs, others])
    far = measure(draw_same_label(labels, count=_FAR_PAIRS, without=known, seed=0), vectors)
    level = find_level(near[of_label], far)
    return pairs[:0] if level is None else pairs[near >= level]


def find_level(near: Floats, far: Floats) -> float | None:
    """The lowest similarity, by halves of far pairs, above which near pairs are twice as frequent; None if never."""
    if not len(near) or not len(far):
        return None
    slices = int(np.log2(max(1.0, min(len(near), len(far)) / _LEAST_EXPECTED)))
    levels = np.quantile(far, 1 - 0.5 ** np.arange(slices + 1))
    above = (near[:, None] >= levels).sum(axis=0)  # (slices + 1,), descending
    found = above - np.append(above[1:], 0)
    share = 0.5 ** np.minimum(np.arange(1, slices + 2), slices)
    frequent = found >= _LIFT * share * len(near)
    if not frequent[-1]:
        return None
    position = len(frequent) - int(np.argmin(frequent[::-1])) if not frequent.all() else 0
    expected = 0.5**position * len(near)
    if above[position] - expected < _DEVIATIONS * np.sqrt(expected):
        return None
    return float(levels[position])


def measure(pairs: Pairs, vectors: Floats) -> Floats:
    """(P,) float32 products of pairs of rows."""
    found = np.empty(len(pairs), dtype=np.float32)
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        left, right = pairs[start : start + _PAIRS_AT_ONCE].T
        found[start : start + _PAIRS_AT_ONCE] = np.einsum("nd,nd->n", vectors[left], vectors[right])
    return found


def draw_same_label(labels: Labels, *, count: int, seed: int, without: Pairs | None = None) -> Pairs:
    """(P, 2) at most `count` random pairs of rows of one label, every row equally often."""
    generator, rows = np.random.default_rng(seed), np.flatnonzero(labels != UNLABELLED)
    if not len(rows):
        return np.empty((0, 2), dtype=np.int64)
    rows = rows[np.argsort(labels[rows], kind="stable")]
    starts, sizes = np.unique(labels[rows], return_index=True, return_counts=True)[1:]
    left = generator.integers(len(rows), size=count)
    of_label = np.searchsorted(starts, left, side="right") - 1
    right = starts[of_label] + (generator.random(count) * sizes[of_label]).astype(np.int64)
    pairs: Pairs = np.sort(np.stack([rows[left], rows[right]], axis=1)[left != right], axis=1)
    if without is not None:
        low, high = np.sort(without, axis=1).T
        pairs = pairs[~np.isin(pairs[:, 0] * len(labels) + pairs[:, 1], low * len(labels) + high)]
    return pairs


def _pair_neighbours(rows: Ids, are_near: _Near) -> Pairs:
    """Pairs of (n,) ordered rows that are near, at most `NUMBERS_APART` positions apart."""
    parts = []
    for apart in range(1, NUMBERS_APART + 1):
        first = np.arange(max(0, len(rows) - apart))
        first = first[are_near(first, first + apart)]
        parts.append(np.stack([rows[first], rows[first + apart]], axis=1))
    return np.concatenate(parts)
