"""Map of a gallery by t-SNE (van der Maaten and Hinton 2008, by openTSNE)."""

from importlib import import_module
from typing import Any, Literal

import numpy as np

from index.arrays import Doubles, Vectors, number_labels
from index.catalog.decided_rows import DecidedRows
from index.errors import MissingDependencyError
from index.gallery.gallery import Gallery
from index.progress import Progress, no_progress
from index.threads import multiplying_workers
from index.vectors.exact import search
from retrieval_app.insights.answer import Answer

MOST_SHOWN = 10_000
_FEWEST = 10  # for t-SNE; fewer are laid out by their principal components
_PERPLEXITY = 30.0  # about so many neighbours of each count, where there are enough
_STEPS_BETWEEN_REPORTS = 10
_EARLY_STEPS, _STEPS = 250, 500
_START_SPREAD = 1e-4  # standard deviation of the first coordinate, as its authors advise


class MapLayout(Answer):
    """Map positions of members, in columns: x and y in 0..1, equally scaled; `label` is an index in `labels`, or -1."""

    method: Literal["t-sne", "pca"]
    total: int
    sampled: bool
    ids: list[int]
    x: list[float]
    y: list[float]
    label: list[int]
    labels: list[str]

    def with_decisions(self, decided: DecidedRows) -> "MapLayout":
        """Layout with decided labels, without dropped images."""
        dropped = set(decided.left_out.tolist())
        shown = [position for position, number in enumerate(self.ids) if number not in dropped]
        ids = [self.ids[position] for position in shown]
        given = [None if number < 0 else self.labels[number] for number in self.label]
        texts = [
            decided.by_id[number].label if number in decided.by_id else given[position]
            for number, position in zip(ids, shown, strict=True)
        ]
        label, names = number_labels(texts)
        x, y = ([axis[position] for position in shown] for axis in (self.x, self.y))
        changed = {"ids": ids, "x": x, "y": y, "label": label.tolist(), "labels": names}
        return self.model_copy(update={"total": self.total - len(dropped), **changed})


def lay_out(gallery: Gallery, progress: Progress = no_progress, *, seed: int = 0) -> MapLayout:
    """Map of the members, or of a random sample of 10,000 (23 s on one core); equal galleries give equal maps."""
    vectors, labels, ids, names = gallery.labelled_vectors()
    shown = np.arange(len(ids))
    if len(ids) > MOST_SHOWN:
        shown = np.sort(np.random.default_rng(seed).choice(len(ids), MOST_SHOWN, replace=False))
    vectors = vectors[shown]
    is_small = len(shown) < _FEWEST
    places = _fit_axes(vectors) if is_small else _embed(vectors, progress=progress)
    low, high = places.min(axis=0), places.max(axis=0)
    extent = float((high - low).max()) or 1.0
    fitted = 0.5 + (places - (low + high) / 2) / extent  # in 0..1, centred
    x, y = fitted.clip(0, 1).astype(np.float32).T.tolist()
    return MapLayout(
        method="pca" if is_small else "t-sne",
        total=len(ids),
        sampled=len(shown) < len(ids),
        ids=ids[shown].tolist(),
        x=x,
        y=y,
        label=labels[shown].tolist(),
        labels=names,
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
        perplexity=perplexity, knn_index=library.nearest_neighbors.PrecomputedNeighbors(found.rows, distances), n_jobs=1
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


def _import_tsne() -> Any:
    try:
        library = import_module("openTSNE")
        import_module("openTSNE.nearest_neighbors")
        import_module("openTSNE.affinity")
    except ImportError as error:
        raise MissingDependencyError(package="openTSNE", extra="serve", purpose="the map of a gallery") from error
    return library
