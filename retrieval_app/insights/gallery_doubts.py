"""The doubted labels of a gallery: judged by vectors that saw no label where it has them, or by a finished audit.

Beside the regression, 100 nearest neighbours, weighted by
exp(10 cos), were tried on 5,324 photos of clothing (20 labels, 64 numbers learnt with Proxy-NCA) of whose labels 20 %
were replaced: their average precision is .88 where these were drawn evenly and .80 where they were mixed up as labels
of neighbours are; that of one regression .90 and .84.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from index.arrays import UNLABELLED
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.doubts import LEAST_DOUBT, Doubt, Doubts, collect_doubts, list_doubts
from index.labels.judge import Settled, judge_labels
from index.labels.kinds import KINDS
from index.labels.suspicion import Chances
from index.progress import Progress, no_progress
from index.text import printable_path
from retrieval_app.insights.duplicate_groups import DuplicateGroups, find_duplicate_groups

_NEEDED = ("path", "sha256", "label", "wrong", "verdict")
_RANKS = (1, 2, 3)


def find_doubts(
    gallery: Gallery, progress: Progress = no_progress, *, duplicates: DuplicateGroups | None = None
) -> Doubts:
    """The labels that the gallery's vectors contradict.

    Args:
        gallery: whose labels are judged.
        progress: told (done, total) of the labels.
        duplicates: of the gallery; None finds them first.

    Raises:
        GalleryError: the gallery is damaged.
    """
    vectors, labels, ids, names = gallery.judging_labels().labelled_vectors()
    rows = np.flatnonzero(labels != UNLABELLED)
    groups = (duplicates or find_duplicate_groups(gallery)).groups_of(ids[rows])
    found = list_doubts(vectors[rows], labels[rows], ids=ids[rows], names=names, groups=groups, progress=progress)
    return replace(found, is_lower_bound=gallery.knows_labels)


def rank_anew(
    gallery: Gallery,
    decided: Mapping[int, str | None],
    *,
    before: Chances | None,
    duplicates: DuplicateGroups,
    progress: Progress = no_progress,
) -> tuple[Doubts, Chances]:
    """The labels that nobody has decided, judged by all, with what was decided believed.

    Args:
        gallery: as for `find_doubts`.
        decided: the label of an image by its id, as somebody decided it; None where the image was dropped.
        before: what the second result was for the same gallery; None finds it first, which takes as long again.
        duplicates: of the gallery.
        progress: told (done, total) of the labels.

    Returns:
        The doubts, without those decided, and what scores mean.
    """
    vectors, given, ids, names = gallery.judging_labels().labelled_vectors()
    dropped = np.isin(ids, [number for number, label in decided.items() if label is None])
    labelled = given != UNLABELLED
    if before is None:
        rows = np.flatnonzero(labelled)
        groups = duplicates.groups_of(ids[rows])
        before = judge_labels(
            vectors[rows], given[rows], count=len(names), groups=groups, progress=progress
        ).chances
    number_of = {name: number for number, name in enumerate(names)}
    now, is_settled = given.copy(), np.zeros(len(given), dtype=bool)
    place_of = {int(number): place for place, number in enumerate(ids.tolist())}
    for image_id, label in decided.items():
        place = place_of.get(image_id)
        if place is not None and label is not None:
            now[place] = number_of.setdefault(label, len(number_of))
            is_settled[place] = True
    rows = np.flatnonzero((now != UNLABELLED) & ~dropped)
    used, labels = np.unique(now[rows], return_inverse=True)
    all_names = list(number_of)
    found = list_doubts(
        vectors[rows], labels.astype(np.int64), ids=ids[rows], names=[all_names[number] for number in used],
        groups=duplicates.groups_of(ids[rows]), settled=Settled(is_settled[rows], before), progress=progress,
    )  # fmt: skip
    return found, before


def read_audit(path: Path, gallery: Gallery) -> Doubts:
    """What an audit thinks of the labels of a gallery's members, matched by the bytes of the images and their label.

    An image whose bytes are not in the gallery, or have another label there, is left out.

    Args:
        path: the folder that `retrieval audit` wrote, or its audit.csv.
        gallery: whose members are looked up.

    Raises:
        InputError: there is no audit, or its table cannot be read.
        GalleryError: the catalogue is damaged.
    """
    table = path / "audit.csv" if path.is_dir() else path
    rows = list(_read_rows(table))
    with gallery.catalog() as catalog:
        members = [row for row in catalog.rows(status="indexed") if row.label is not None]
    by_content = {(row.sha256 or "", row.label or ""): row for row in reversed(members)}  # the first of equals
    by_path = {row["path"]: by_content.get((row["sha256"], row["label"])) for row in rows}
    labels = {row.id: row.label or "" for row in members}
    judged, wrong, items = 0, 0.0, []
    for row in rows:
        member = by_path[row["path"]]
        if member is None:
            continue
        chance = _number(row, "wrong", table)
        judged, wrong = judged + 1, wrong + chance
        if chance >= LEAST_DOUBT:
            items.append(_doubt(row, member, by_path, labels=labels, table=table))
    items.sort(key=lambda doubt: -doubt.wrong)
    return collect_doubts(items, judged=judged, wrong=wrong)


def _read_rows(table: Path) -> Iterator[dict[str, str]]:
    shown = printable_path(str(table))
    try:
        with table.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{shown}: no table of an audit: it lacks the columns {', '.join(missing)}")
            for row in reader:
                yield {name: value or "" for name, value in row.items() if isinstance(name, str)}
    except OSError as error:
        advice = "give the folder that `retrieval audit` wrote"
        raise InputError(f"{shown}: the audit cannot be read: {error.strerror}; {advice}") from error
    except csv.Error as error:
        raise InputError(f"{shown}: the audit cannot be read: {error}") from error


def _doubt(
    row: Mapping[str, str],
    member: CatalogRow,
    by_path: Mapping[str, CatalogRow | None],
    *,
    labels: Mapping[int, str],
    table: Path,
) -> Doubt:
    suggestions = [
        (row[f"suggestion_{rank}"], _number(row, f"suggestion_confidence_{rank}", table))
        for rank in _RANKS
        if row.get(f"suggestion_{rank}")
    ]
    sides: dict[str, list[tuple[int, float]]] = {"agreeing": [], "disagreeing": []}
    for side, found in sides.items():
        for rank in _RANKS:
            other = by_path.get(row.get(f"{side}_{rank}", ""))
            if other is not None:
                found.append((other.id, _number(row, f"{side}_cosine_{rank}", table)))
    return Doubt(
        id=member.id,
        label=row["label"],
        wrong=_number(row, "wrong", table),
        suggestions=tuple((label, share) for label, share in suggestions if label != row["label"]),
        kind=next((kind for kind in KINDS if kind == row.get("kind")), "wrong"),
        verdict=row["verdict"],
        agreeing=tuple(sides["agreeing"]),
        disagreeing=tuple((number, score, labels[number]) for number, score in sides["disagreeing"]),
    )


def _number(row: Mapping[str, str], name: str, table: Path) -> float:
    try:
        return float(row.get(name, ""))
    except ValueError as error:
        shown = printable_path(str(table))
        raise InputError(
            f"{shown}: {name} of {printable_path(row['path'])} is {row.get(name)!r}, no number; audit again"
        ) from error
