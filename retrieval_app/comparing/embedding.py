"""The vectors of one candidate for the images: what is known already is taken, and only the rest embedded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids
from index.embedding.cached import CachedEngine, open_cached_engine
from index.gallery.gallery import Gallery
from index.model.embedder import Embedder
from index.outputs import KIND
from index.progress import Progress, no_progress
from index.sources.items import Place
from retrieval_app.comparing.candidates import GALLERY, RUN, Candidate
from retrieval_app.comparing.photos import Photos


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a candidate makes of N images.

    Attributes:
        vectors: (N, D) float32 unit rows; those that are not usable are zeros.
        problems: by row, why an image has no vector.
        embedded: images that its model saw now.
        from_cache: images that it saw in an earlier command.
        from_gallery: images whose vectors a gallery had.
        per_second: images that it embeds in a second here, now or when it did; None where that was never seen.
        trained_on: images that it was trained on; None where that is not known.
        run_id: of the training that a model file names; empty without.
    """

    vectors: Floats
    problems: dict[int, str]
    embedded: int
    from_cache: int = 0
    from_gallery: int = 0
    per_second: float | None = None
    trained_on: int | None = None
    run_id: str = ""

    @property
    def usable(self) -> npt.NDArray[np.bool_]:
        """(N,) bool."""
        usable = np.ones(len(self.vectors), dtype=np.bool_)
        usable[list(self.problems)] = False
        return usable

    def keep(self, rows: Ids) -> Embedded:
        """The vectors of some rows, all of them usable; the counts stay those of all."""
        return replace(self, vectors=self.vectors[rows], problems={})


def embed_candidate(
    candidate: Candidate,
    photos: Photos,
    *,
    cache: Path | None,
    features: Path,
    workers: int,
    progress: Progress = no_progress,
) -> Embedded:
    """Embed the images with a candidate.

    Args:
        cache: folder of vectors that are kept for later; None for none.
        features: folder of backbone features, for runs.

    Raises:
        ModelFileError, GalleryError, RunError: the candidate cannot be used.
    """
    if candidate.kind == RUN:
        from retrieval_app.comparing.run_vectors import embed_run

        return embed_run(
            candidate.path, photos, cache=cache, features=features, workers=workers, progress=progress
        )
    if candidate.kind == GALLERY:
        return _embed_gallery(candidate.path, photos, cache=cache, workers=workers, progress=progress)
    embedder = Embedder(candidate.path, threads=1)
    return embed_model(embedder, photos, cache=cache, workers=workers, progress=progress)


def embed_model(
    embedder: Embedder,
    photos: Photos,
    *,
    cache: Path | None,
    workers: int,
    known: dict[int, Floats] | None = None,
    progress: Progress = no_progress,
) -> Embedded:
    """Embed the images with a model, but those rows whose vectors are `known`.

    All of its outputs are computed, as galleries have them, so that what is kept serves a later gallery.
    """
    found = known or {}
    whole, width = embedder.giving(*embedder.contract.widths), embedder.contract.widths[KIND]
    vectors = np.zeros((len(photos.photos), width), dtype=np.float32)
    for row, stored in found.items():
        vectors[row] = stored
    rest = ((row, photo.place) for row, photo in enumerate(photos.photos) if row not in found)
    problems: dict[int, str] = {}
    with open_cached_engine(whole, cache=cache, workers=workers) as engine:
        done = len(found)
        for row, vector, problem in _run(engine, rest, photos):
            if vector is None:
                problems[row] = problem
            else:
                vectors[row] = vector[:width]
            done += 1
            progress(done, len(photos.photos))
        return Embedded(
            vectors,
            problems,
            embedded=engine.embedded,
            from_cache=engine.found,
            from_gallery=len(found),
            per_second=engine.speed(),
            run_id=embedder.contract.run_id,
        )


def _run(
    engine: CachedEngine, items: Iterator[tuple[int, Place]], photos: Photos
) -> Iterator[tuple[int, Floats | None, str]]:
    """(row, vector, why there is none) of each item; an image that has changed meanwhile has none."""
    with closing(engine.embed(items)) as batches:
        for batch in batches:
            for item in batch:
                if item.problem is not None:
                    yield item.id, None, item.problem.reason
                elif item.sha256 != photos.photos[item.id].sha256:
                    yield item.id, None, "changed"
                else:
                    yield item.id, item.vector, ""


def _embed_gallery(
    path: Path, photos: Photos, *, cache: Path | None, workers: int, progress: Progress
) -> Embedded:
    """The stored vectors of the images that the gallery has, by their bytes; the others are embedded by its model."""
    gallery = Gallery.open(path).as_given
    ids: dict[str, int] = {}
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            if row.sha256 is not None:
                ids.setdefault(row.sha256, row.id)
    rows = [row for row, photo in enumerate(photos.photos) if photo.sha256 in ids]
    wanted = np.array([ids[photos.photos[row].sha256] for row in rows], dtype=np.int64)
    known = dict(zip(rows, gallery.vectors(wanted), strict=True)) if rows else {}
    return embed_model(gallery.embedder, photos, cache=cache, workers=workers, known=known, progress=progress)
