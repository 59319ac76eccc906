"""The gallery's labels with people's decisions applied: a CSV of `path,label` that training and building read."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index.catalog import CatalogRow
from index.gallery import Gallery
from index.versions import replacing
from retrieval_app.review.decisions import CHANGE, DROP, LabelDecision, LabelKey

_HEADER = ("path", "label")
_BLOCK_ROWS = 1000
_KEPT, _CHANGED, _DROPPED, _UNLABELLED, _ARCHIVED, _UNNAMABLE = range(6)


@dataclass(frozen=True, slots=True)
class LabelFile:
    """What a label file has, and what it leaves out.

    Attributes:
        images: rows of the file.
        changed: of these, with another label than the gallery has.
        dropped: left out because somebody decided so.
        unlabelled: left out because they have no label.
        in_archives: left out because training reads no members of archives.
        unnamable: left out because the file is UTF-8 and their paths are not.
    """

    images: int
    changed: int
    dropped: int
    unlabelled: int
    in_archives: int
    unnamable: int


Decisions = Mapping[LabelKey, LabelDecision]
"""As `ReviewStore.label_decisions` gives them."""


def write_label_file(gallery: Gallery, decisions: Decisions, path: Path) -> LabelFile:
    """Write the file, which is there whole or not at all.

    Raises:
        GalleryError: the gallery is damaged.
        OSError: it cannot be written.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in stream_label_file(gallery, decisions):
            file.write(block)
    return count_labels(gallery, decisions)


def stream_label_file(gallery: Gallery, decisions: Decisions) -> Iterator[bytes]:
    """The file in blocks of rows: absolute paths, so that it can be kept anywhere.

    Nothing is put before what a spreadsheet would take for a formula: the file is read back by programs.

    Raises:
        GalleryError: the gallery is damaged.
    """
    rows: list[Sequence[str]] = [_HEADER]
    for outcome, path, label in _choose(gallery, decisions):
        if outcome in (_KEPT, _CHANGED):
            rows.append((path, label))
        if len(rows) >= _BLOCK_ROWS:
            yield _write_rows(rows)
            rows.clear()
    yield _write_rows(rows)


def count_labels(gallery: Gallery, decisions: Decisions) -> LabelFile:
    """What the file has, without it.

    Raises:
        GalleryError: the gallery is damaged.
    """
    counts = Counter(outcome for outcome, _, _ in _choose(gallery, decisions))
    return LabelFile(
        images=counts[_KEPT] + counts[_CHANGED],
        changed=counts[_CHANGED],
        dropped=counts[_DROPPED],
        unlabelled=counts[_UNLABELLED],
        in_archives=counts[_ARCHIVED],
        unnamable=counts[_UNNAMABLE],
    )


def _choose(gallery: Gallery, decisions: Decisions) -> Iterator[tuple[int, str, str]]:
    """(outcome, absolute path, label) of every usable image, those set aside as duplicates included."""
    roots = {number: str(source.root) for number, source in gallery.sources.items()}
    with gallery.catalog() as catalog:
        for status in ("indexed", "duplicate"):
            for row in catalog.rows(status=status):
                path = os.path.join(roots[row.source], row.path)
                outcome, label = _choose_label(row, decisions)
                if outcome in (_KEPT, _CHANGED):
                    outcome = _ARCHIVED if row.archive is not None else outcome if _is_text(path) else _UNNAMABLE
                yield outcome, path, label


def _choose_label(row: CatalogRow, decisions: Decisions) -> tuple[int, str]:
    decision = decisions.get((row.sha256 or "", row.label))
    if decision is not None and decision.decision == DROP:
        return _DROPPED, ""
    if decision is not None and decision.decision == CHANGE and decision.new_label:
        return _CHANGED, decision.new_label
    label = row.label or ""
    return (_KEPT if label.strip() else _UNLABELLED), label  # readers take white space around a label away


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _write_rows(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
