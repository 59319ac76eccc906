"""Map of a gallery: similar members lie near each other (t-SNE, van der Maaten and Hinton 2008, by openTSNE)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from index.arrays import Floats, Ids, Vectors
from index.catalog.decided_rows import DecidedRows
from index.errors import MissingDependencyError
from index.gallery.gallery import Gallery, number_labels
from index.progress import Progress, no_progress
from index.threads import multiplying_workers
from index.vectors.exact import search

MOST_SHOWN = 10_000
_FEWEST = 10  # for t-SNE; fewer are laid out by their principal components
_PERPLEXITY = 30.0  # about so many neighbours of each count, where there are enough
_STEPS_BETWEEN_REPORTS = 10
_EARLY_STEPS, _STEPS = 250, 500
_START_SPREAD = 1e-4  # standard deviation of the first coordinate, as its authors advise

Doubles: TypeAlias = npt.NDArray[np.float64]


class Listed:
    """Says, in `Annotated`, that an (n,) array is kept as the list of its numbers."""

    def __init__(self, number: type[int] | type[float], dtype: npt.DTypeLike) -> None:
        self._number, self._dtype = number, dtype

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda numbers: np.array(numbers, dtype=self._dtype),
            handler.generate_schema(list[self._number]),  # type: ignore[name-defined]
            serialization=core_schema.plain_serializer_function_ser_schema(np.ndarray.tolist),
        )


@dataclass(frozen=True, slots=True)
class MapLayout:
    """Where members lie.

    Attributes:
        method: "t-sne", or "pca" where there are too few.
        total: members of the gallery.
        ids: (n,) int64 of those that are shown, rising.
        x, y: (n,) float32 in 0..1, of one scale.
        label: (n,) int64 positions in `labels`, -1 without a label.
        labels: names, sorted.
    """

    method: Literal["t-sne", "pca"]
    total: int
    ids: Annotated[Ids, Listed(int, np.int64)]
    x: Annotated[Floats, Listed(float, np.float32)]
    y: Annotated[Floats, Listed(float, np.float32)]
    label: Annotated[Ids, Listed(int, np.int64)]
    labels: tuple[str, ...]

    @property
    def sampled(self) -> bool:
        """Whether some are not shown."""
        return len(self.ids) < self.total

    def with_decisions(self, decided: DecidedRows) -> MapLayout:
        """The same places with labels as they were decided, and without the images that were dropped."""
        is_shown = np.isin(self.ids, decided.dropped, invert=True)
        texts = [
            decided.by_id[number].label if number in decided.by_id else None if place < 0 else self.labels[place]
            for number, place in zip(self.ids[is_shown].tolist(), self.label[is_shown].tolist(), strict=True)
        ]
        label, names = number_labels(texts)
        return MapLayout(
            self.method, self.total - len(decided.dropped), self.ids[is_shown], self.x[is_shown], self.y[is_shown],
            label=label, labels=tuple(names),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """As in the API without the version; arrays as lists."""
        values: dict[str, Any] = TypeAdapter(MapLayout).dump_python(self, mode="json")
        return {**values, "sampled": self.sampled}


def lay_out(gallery: Gallery, progress: Progress = no_progress, *, seed: int = 0) -> MapLayout:
    """Lay out the members, of more than 10,000 a random sample; the same gallery gives the same map.

    One core takes 14 s for 5,324 members of 64 numbers and 23 s for 10,000; never more, whatever the gallery's size.

    Raises:
        MissingDependencyError: openTSNE is not installed.
    """
    vectors, labels, ids, names = gallery.labelled_vectors()
    shown = np.arange(len(ids))
    if len(ids) > MOST_SHOWN:
        shown = np.sort(np.random.default_rng(seed).choice(len(ids), MOST_SHOWN, replace=False))
    vectors = vectors[shown]
    is_small = len(shown) < _FEWEST
    places = _fit_axes(vectors) if is_small else _embed(vectors, progress=progress)
    x, y = _fit_square(places)
    return MapLayout(
        "pca" if is_small else "t-sne", len(ids), ids[shown], x, y, label=labels[shown], labels=tuple(names)
    )


def _fit_axes(vectors: Vectors) -> Doubles:
    """(n, 2) principal components, of a sign that does not depend on the machine."""
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)
    best = axes[:, ::-1][:, :2]
    best = best * np.where(best[np.abs(best).argmax(axis=0), range(best.shape[1])] < 0, -1, 1)
    places: Doubles = centred @ best
    return np.pad(places, ((0, 0), (0, 2 - places.shape[1])))


def _embed(vectors: Vectors, *, progress: Progress) -> Doubles:
    library = _import_tsne()
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    with multiplying_workers():  # in the background: one thread
        found = search(vectors, vectors, k=int(3 * perplexity), own=np.arange(len(vectors)))
    distances = np.sqrt((2 - 2 * found.cosines.astype(np.float64)).clip(min=0))
    affinities = library.affinity.PerplexityBasedNN(
        perplexity=perplexity,
        knn_index=library.nearest_neighbors.PrecomputedNeighbors(found.rows, distances),
        n_jobs=1,
    )
    start = _fit_axes(vectors)
    start *= _START_SPREAD / max(float(start[:, 0].std()), 1e-12)
    done = 0

    def report(step: int, error: float, places: Doubles) -> None:
        nonlocal done
        done += _STEPS_BETWEEN_REPORTS
        progress(done, _EARLY_STEPS + _STEPS)

    method = library.TSNE(
        perplexity=perplexity,
        early_exaggeration_iter=_EARLY_STEPS,
        n_iter=_STEPS,
        callbacks=report,
        callbacks_every_iters=_STEPS_BETWEEN_REPORTS,
        n_jobs=1,
        random_state=0,
    )
    return np.asarray(method.fit(affinities=affinities, initialization=start), dtype=np.float64)


def _fit_square(places: Doubles) -> tuple[Floats, Floats]:
    """(n,) x and y in 0..1 with the middle in the middle."""
    low, high = places.min(axis=0), places.max(axis=0)
    extent = float((high - low).max())
    fitted = 0.5 + (places - (low + high) / 2) / (extent or 1.0)
    x, y = fitted.clip(0, 1).astype(np.float32).T
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def _import_tsne() -> Any:
    try:
        library = import_module("openTSNE")
        import_module("openTSNE.nearest_neighbors")
        import_module("openTSNE.affinity")
    except ImportError as error:
        raise MissingDependencyError(package="openTSNE", extra="ui", purpose="the map of a gallery") from error
    return library
