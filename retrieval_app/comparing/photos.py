"""The images on which candidates are compared: those of any source, with their labels and the hashes of their bytes."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from index.arrays import UNLABELLED, Ids, Labels
from index.errors import ImageError, InputError
from index.evaluation.clues import read_time
from index.evaluation.scenes import COLUMN, Clues
from index.progress import Progress, no_progress
from index.sources.folder import FolderSource
from index.sources.items import Place
from index.sources.reading import read_place
from index.sources.registry import find_source
from index.sources.table_rows import as_text
from index.text import printable_path
from index.threads import map_ahead
from index.writing.assigned_labels import AssignedLabels

_HASHED_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Photo:
    """One image: its path below the source, its place with the hash of its bytes, its label, what tells its scene."""

    path: str
    place: Place
    label: str | None
    group: str | None

    @property
    def sha256(self) -> str:
        """Of its bytes."""
        assert self.place.sha256 is not None
        return self.place.sha256


@dataclass(frozen=True, slots=True)
class Photos:
    """The images of a source, in its order; `skipped` counts those that cannot be used, by reason."""

    source: str
    photos: tuple[Photo, ...]
    skipped: Counter[str]

    def keep(self, rows: Ids, *, reasons: Counter[str]) -> Photos:
        """Those of some rows, where the others are skipped for some reasons."""
        return replace(
            self, photos=tuple(self.photos[row] for row in rows.tolist()), skipped=self.skipped + reasons
        )

    def number_labels(self) -> tuple[Labels, list[str]]:
        """(N,) int64 labels as positions in the names, which are sorted; `UNLABELLED` where there is none."""
        names = sorted({photo.label for photo in self.photos if photo.label is not None})
        number = {name: position for position, name in enumerate(names)}
        labels = [UNLABELLED if photo.label is None else number[photo.label] for photo in self.photos]
        return np.array(labels, dtype=np.int64), names

    def clues(self) -> Clues:
        """What tells, beside embeddings, which of them show one scene."""
        places = [photo.place for photo in self.photos]
        names = [str(p.file) if p.offset is None else f"{p.file}/{p.name}" for p in places]
        times = np.array([read_time(place) for place in places], dtype=np.float64)
        copies = np.unique([photo.sha256 for photo in self.photos], return_inverse=True)[1].astype(np.int64)
        return Clues(names, times, given=[photo.group for photo in self.photos], copies=copies, column=COLUMN)


def read_photos(
    source: str, *, labels_file: Path | None = None, workers: int, progress: Progress = no_progress
) -> Photos:
    """Find every image of a source, and hash it.

    Args:
        source: as `retrieval index build` takes it.
        labels_file: `path,label`, which goes before all other labels.

    Raises:
        InputError: the source or the labels cannot be used, or nothing has a label.
    """
    found, skipped, given = find_source(source), Counter[str](), None
    if labels_file is not None:
        given = AssignedLabels(labels_file)
    items = []
    for item in found.scan():
        if item.problem is not None:
            skipped[item.problem.reason] += 1
            continue
        named = item if given is None else given.label(item, os.path.join(found.root, item.path))
        group = (item.metadata or {}).get(COLUMN)
        told = None if isinstance(group, dict | list) else as_text(group) or None
        items.append(Photo(item.path, found.locate(item), named.label, told))
    if given is not None:
        given.check_used()
    shown = printable_path(source)
    if not items:
        raise InputError(f"{shown}: it has no image to compare on")
    if not any(photo.label for photo in items):
        raise InputError(
            f"{shown}: none of its {len(items)} images has a label, so nobody can say which hit is right; give a "
            "folder of class folders, a table of path,label, or --labels FILE"
        )
    return Photos(source, tuple(_hash_photos(items, skipped, workers=workers, progress=progress)), skipped)


def _hash_photos(
    photos: Sequence[Photo], skipped: Counter[str], *, workers: int, progress: Progress
) -> list[Photo]:
    def read(photo: Photo) -> Photo | str:
        try:
            data = read_place(photo.place)
        except ImageError as error:
            return error.reason
        return replace(photo, place=replace(photo.place, sha256=hashlib.sha256(data).hexdigest()))

    kept = []
    for done, photo in enumerate(map_ahead(read, photos, workers=workers, ahead=_HASHED_AHEAD), start=1):
        if isinstance(photo, str):
            skipped[photo] += 1
        else:
            kept.append(photo)
        progress(done, len(photos))
    return kept


def require_outside(out: Path, *, source: str, flag: str = "--out") -> None:
    """Refuse to write where the source's next scan would meet the files.

    Raises:
        InputError: `out` lies there.
    """
    found = find_source(source)
    if isinstance(found, FolderSource) and out.resolve().is_relative_to(Path(found.root)):
        raise InputError(
            f"{flag} {printable_path(str(out))} lies inside the images in {printable_path(source)}; choose a place "
            "beside them"
        )
