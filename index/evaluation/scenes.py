"""Which images show one scene: shots of a burst and copies, which find each other whatever they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.arrays import Floats, Ids, Labels, connect_rows
from index.evaluation.nearness import (
    Pairs,
    Seconds,
    find_look_alikes,
    keep_alike,
    pair_across_sets,
    pair_by_name,
    pair_by_time,
)

COLUMN = "group"  # of a table, or of a gallery's metadata
COPIES = "copies"  # what scenes are found by where nothing else tells any


@dataclass(frozen=True, slots=True)
class Clues:
    """What tells of N images, beside their embeddings, which show one scene.

    Attributes:
        names: paths of their files.
        times: (N,) float64 seconds at which they were taken or written; NaN where unknown.
        given: what the user says, the same text for one scene; None for an image of which nothing is said. None: there
            is no such column.
        column: where the user says it.
        copies: (N,) int64, the same for images that are copies of each other; None where none were looked for.
    """

    names: Sequence[str]
    times: Seconds
    given: Sequence[str | None] | None = None
    copies: Ids | None = None
    column: str = COLUMN


@dataclass(frozen=True, slots=True)
class Scenes:
    """(N,) int64 `groups`, the same for images of one scene, and what they were found by, in words.

    `is_certain` where they were given, or where names or times tell them; else photos are only suspiciously alike, and
    `shots` (N,) int64 are groups of the most alike of one label, for what learns from images; else the same groups.
    """

    groups: Ids
    found_by: str
    is_certain: bool
    shots: Ids

    @property
    def images(self) -> int:
        """Those that share their scene with another one."""
        sizes = np.unique(self.groups, return_counts=True)[1]
        return int(sizes[sizes > 1].sum())

    @property
    def count(self) -> int:
        """Scenes of more than one image."""
        return int((np.unique(self.groups, return_counts=True)[1] > 1).sum())

    def to_json(self) -> dict[str, object]:
        """What reports say of them."""
        return {"found_by": self.found_by, "scenes": self.count, "images": self.images}


def find_scenes(vectors: Floats, labels: Labels, clues: Clues, *, sets: Ids | None = None) -> Scenes | None:
    """Scenes as the user gives them; else by names and times, where these tell; else by closeness alone, where that
    makes a difference. Copies are of one scene in any case.

    Args:
        vectors: (N, D) float32 unit rows.
        labels: (N,) int64, `UNLABELLED` where there is none.
        sets: (N,) int64, different for images that were parted, as photos that train from those that validate: a series
            of file names goes on in another set under the same label. None: folders alone tell series.

    Returns:
        None where nothing points to scenes.
    """
    told = find_told_scenes(vectors, labels, clues, sets=sets)
    if told is not None or (clues.given is not None and any(clues.given)):
        return told
    alike = find_look_alikes(vectors, labels)
    if alike is not None:
        groups, shots = (_join_copies(groups, clues.copies) for groups in alike)
        return Scenes(groups, "closeness alone", False, shots)
    return _join(np.empty((0, 2), dtype=np.int64), clues, found_by="")


def find_told_scenes(vectors: Floats, labels: Labels, clues: Clues, *, sets: Ids | None = None) -> Scenes | None:
    """Scenes by what is known beside the embeddings: the user's word, or else names and times; with copies."""
    if clues.given is not None and any(clues.given):
        first: dict[str, int] = {}
        pairs = [(first.setdefault(name, row), row) for row, name in enumerate(clues.given) if name]
        given = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return _join(given, clues, found_by=f"the column {clues.column!r}")
    by_name = _pair_names(vectors, labels, clues.names, sets=sets)
    by_time = keep_alike(pair_by_time(clues.times), vectors, labels)
    told = [what for what, pairs in (("file names", by_name), ("times", by_time)) if len(pairs)]
    if not told:
        return None
    return _join(np.concatenate([by_name, by_time]), clues, found_by=" and ".join(told))


def _pair_names(vectors: Floats, labels: Labels, names: Sequence[str], *, sets: Ids | None) -> Pairs:
    inside = pair_by_name(names)
    kept = keep_alike(inside, vectors, labels)
    if sets is None:
        return kept
    across = pair_across_sets(names, labels=labels, sets=sets)
    return np.concatenate([kept, keep_alike(across, vectors, labels, others=inside)])


def _join(pairs: Pairs, clues: Clues, *, found_by: str) -> Scenes | None:
    """Scenes of connected pairs and copies; None where no two images are of one."""
    groups = connect_rows(pairs, count=len(clues.names))
    joined = _join_copies(groups, clues.copies)
    if not np.array_equal(groups, joined):
        found_by = f"{found_by} and {COPIES}" if found_by else COPIES
    scenes = Scenes(joined, found_by, True, joined)
    return scenes if scenes.count else None


def _join_copies(groups: Ids, copies: Ids | None) -> Ids:
    if copies is None:
        return groups
    first = np.unique(copies, return_index=True, return_inverse=True)
    rows = np.arange(len(groups))
    pairs = np.stack([np.concatenate([rows, rows]), np.concatenate([groups, first[1][first[2]]])], axis=1)
    return connect_rows(pairs, count=len(groups))
