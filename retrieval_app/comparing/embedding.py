"""Images of a comparison with their labels, and the vectors of one candidate for them."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from index.arrays import Floats, Labels
from index.embedding.cached import open_cached_engine
from index.errors import ImageError, InputError
from index.evaluation.group_sources import gather_group_sources
from index.evaluation.groups import GroupSources, name_group, number_equal
from index.gallery.gallery import Gallery, number_labels
from index.model.embedder import Embedder
from index.outputs import SEMANTIC
from index.progress import Progress, no_progress
from index.sources.items import Place
from index.sources.local_source import FolderSource
from index.sources.reading import read_place
from index.sources.registry import find_source
from index.text import printable_path
from index.threads import map_ahead
from index.writing.scanning import AssignedLabels
from retrieval_app.comparing.public import GALLERY, RUN, Candidate

_HASHED_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Photo:
    """One image: its path below the source, its place with the hash of its bytes, its label, and its given group."""

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
    """Images of a source; `skipped` counts unusable ones by reason."""

    source: str
    photos: tuple[Photo, ...]
    skipped: Counter[str]

    def number_labels(self) -> tuple[Labels, list[str]]:
        """(N,) int64 labels as positions in the sorted names, `UNLABELLED` without one."""
        return number_labels([photo.label for photo in self.photos])

    def group_sources(self) -> GroupSources:
        """Sources of groups, beside embeddings."""
        return gather_group_sources(
            [photo.place for photo in self.photos],
            given=[photo.group for photo in self.photos],
            copies=number_equal([photo.sha256 for photo in self.photos]),
        )


def read_photos(
    source: str, *, labels_file: Path | None = None, workers: int, progress: Progress = no_progress
) -> Photos:
    """Find every image of a source, and hash it.

    Args:
        source: as `retrieval index build` takes it.
        labels_file: `path,label`, in place of all other labels.

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
        items.append(Photo(item.path, found.locate(item), named.label, name_group(item.metadata)))
    if given is not None:
        given.check_used()
    shown = printable_path(source)
    if not items:
        raise InputError(f"{shown}: it has no image to compare on")
    if not any(photo.label for photo in items):
        raise InputError(
            f"{shown}: none of {len(items)} images has a label; give a folder of class folders, a table of path,label, "
            "or --labels FILE"
        )
    return Photos(source, tuple(_hash_photos(items, skipped, workers=workers, progress=progress)), skipped)


def _hash_photos(photos: Sequence[Photo], skipped: Counter[str], *, workers: int, progress: Progress) -> list[Photo]:
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
    """Refuse to write inside the images, where the next scan would find the files."""
    found = find_source(source)
    if isinstance(found, FolderSource) and out.resolve().is_relative_to(Path(found.root)):
        raise InputError(
            f"{flag} {printable_path(str(out))} lies inside the images in {printable_path(source)}; choose a place "
            "beside them"
        )


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a candidate for N images.

    Attributes:
        vectors: (N, D) float32 unit rows; zeros for unusable images.
        problems: by row, why an image has no vector.
        embedded: images that were embedded now; others came `from_cache` or `from_gallery`.
        per_second: speed here, now or earlier; None if it is not known.
        trained_on: images that it was trained on; None if that is not known.
        run_id: of the training that a model file names; empty without.
    """

    candidate: Candidate
    vectors: Floats
    problems: dict[int, str]
    embedded: int
    from_cache: int = 0
    from_gallery: int = 0
    per_second: float | None = None
    trained_on: int | None = None
    run_id: str = ""


def embed_candidate(
    candidate: Candidate, photos: Photos, *, cache: Path, workers: int, progress: Progress = no_progress
) -> Embedded:
    """Embed the images with a candidate; the cache folder keeps vectors, and the features of runs."""
    if candidate.kind == RUN:
        from retrieval_app.comparing.run_vectors import embed_run

        return embed_run(candidate, photos, cache=cache, workers=workers, progress=progress)
    embedder, known = None, dict[int, Floats]()
    if candidate.kind == GALLERY:
        gallery = Gallery.open(candidate.path).without_decisions
        embedder, known = gallery.embedder, _find_stored(gallery, photos)
    return embed_model(
        candidate, photos, embedder=embedder, known=known, cache=cache, workers=workers, progress=progress
    )


def _find_stored(gallery: Gallery, photos: Photos) -> dict[int, Floats]:
    """Stored vectors of a gallery, by row, of images with the same bytes."""
    ids: dict[str, int] = {}
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            if row.sha256 is not None:
                ids.setdefault(row.sha256, row.id)
    rows = [row for row, photo in enumerate(photos.photos) if photo.sha256 in ids]
    wanted = np.array([ids[photos.photos[row].sha256] for row in rows], dtype=np.int64)
    return dict(zip(rows, gallery.vectors(wanted), strict=True)) if rows else {}


def embed_model(
    candidate: Candidate,
    photos: Photos,
    *,
    cache: Path,
    workers: int,
    embedder: Embedder | None = None,
    known: dict[int, Floats] | None = None,
    progress: Progress = no_progress,
) -> Embedded:
    """Embed the images with a model, but those rows whose vectors are `known`.

    All outputs are computed, so that the cache serves a later gallery. An image that changed since it was hashed has
    no vector.
    """
    embedder, found = embedder or Embedder(candidate.path, threads=1), known or {}
    whole, width = embedder.giving(*embedder.contract.widths), embedder.contract.widths[SEMANTIC]
    vectors = np.zeros((len(photos.photos), width), dtype=np.float32)
    for row, stored in found.items():
        vectors[row] = stored
    rest = ((row, photo.place) for row, photo in enumerate(photos.photos) if row not in found)
    problems: dict[int, str] = {}
    with open_cached_engine(whole, cache=cache, workers=workers) as engine:
        with closing(engine.embed(rest)) as batches:
            for done, item in enumerate(chain.from_iterable(batches), start=len(found) + 1):
                if item.problem is not None:
                    problems[item.id] = item.problem.reason
                elif item.sha256 != photos.photos[item.id].sha256:
                    problems[item.id] = "changed"
                else:
                    assert item.vector is not None
                    vectors[item.id] = item.vector[:width]
                progress(done, len(photos.photos))
        return Embedded(
            candidate,
            vectors,
            problems,
            embedded=engine.embedded,
            from_cache=engine.found,
            from_gallery=len(found),
            per_second=engine.speed(),
            run_id=embedder.contract.run_id,
        )


def keep_common(photos: Photos, made: Sequence[Embedded]) -> tuple[Photos, list[Embedded]]:
    """Images that every candidate could use, so that all have the same queries, and their vectors.

    Raises:
        InputError: there is none.
    """
    problems: dict[int, str] = {}
    for one in reversed(made):  # the first candidate's reason counts
        problems.update(one.problems)
    rows = [row for row in range(len(photos.photos)) if row not in problems]
    skipped = photos.skipped + Counter(problems.values())
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        raise InputError(f"{printable_path(photos.source)}: no image that every candidate can use: {reasons}")
    kept = replace(photos, photos=tuple(photos.photos[row] for row in rows), skipped=skipped)
    return kept, [replace(one, vectors=one.vectors[rows], problems={}) for one in made]
