"""Image problems: blurred, dark, bright, empty, tiny and other bad images of a gallery, and placeholders.

A problem is a filter on a measure, whose threshold is chosen from the gallery's own values: so many spreads from their
median that few good images lie beyond, and within limits, so that a clean gallery has few problems and a bad one many.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from index.catalog.reader import Catalog
from index.filters.condition import DERIVED, OWN_COLUMNS, Compare, Constant
from index.filters.parser import write_condition
from index.gallery.gallery import Gallery

Values = npt.NDArray[np.float64]
_SPREADS = 3.5  # of a normal distribution, 2 in 10,000 lie beyond
_BINS = 40
ProblemKind: TypeAlias = Literal[
    "blurred", "dark", "bright", "low_information", "tiny", "odd_aspect", "border", "heavy_compression", "placeholder"
]
_MANY_LABELS, _MANY_IMAGES = 3, 10  # of one picture: a placeholder
_MOST_HASHES = 400  # in a filter


@dataclass(frozen=True, slots=True)
class _Measured:
    """A problem by a measure: images beyond a threshold in `limits`; a `spread` is at least so large."""

    column: str
    above: bool
    limits: tuple[float, float]
    spread: float
    in_log: bool = False


_BY_MEASURE: dict[ProblemKind, _Measured] = {
    "blurred": _Measured("sharpness", False, (10, 100), 0.1, in_log=True),
    "dark": _Measured("brightness", False, (0.1, 0.2), 0.02),
    "bright": _Measured("brightness", True, (0.8, 0.98), 0.02),
    "low_information": _Measured("contrast", False, (0.03, 0.08), 0.01),
    "tiny": _Measured("small_side", False, (24, 100), 0.1, in_log=True),
    "odd_aspect": _Measured("aspect", True, (2.5, 5), 0.1, in_log=True),
    "border": _Measured("border", True, (0.25, 0.95), 0.05),
    "heavy_compression": _Measured("jpeg_quality", False, (10, 30), 5),
}


@dataclass(frozen=True, slots=True)
class ImageProblem:
    """Images with one problem: the `count` that the filter `where` keeps.

    Attributes:
        column: the measure, whose values `above` or below the `threshold` are the problem; None for placeholders.
        edges, counts: of a histogram; the edges, or their logarithms, are evenly spaced.
        left_out: images of further placeholders, which a filter of at most `_MOST_HASHES` hashes has no room for.
    """

    kind: ProblemKind
    count: int
    where: str
    column: str | None
    above: bool
    threshold: float | None
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    left_out: int


def find_problems(gallery: Gallery) -> list[ImageProblem]:
    """Problems of the indexed images, in the order of `ProblemKind`; those without a known measure are left out."""
    columns = {kind.column: DERIVED.get(kind.column, kind.column) for kind in _BY_MEASURE.values()}
    with gallery.catalog() as catalog:
        query = f"SELECT {', '.join(columns.values())} FROM images WHERE status = 'indexed'"
        table = np.array(catalog.connection.execute(query).fetchall(), dtype=np.float64).reshape(-1, len(columns))
        placeholders = _find_placeholders(catalog)
    values = {name: column[~np.isnan(column)] for name, column in zip(columns, table.T, strict=True)}
    found = [_measure_problem(name, kind, values[kind.column]) for name, kind in _BY_MEASURE.items()]
    return [problem for problem in (*found, placeholders) if problem is not None]


def choose_threshold(values: Values, *, above: bool, limits: tuple[float, float], spread: float, in_log: bool) -> float:
    """A threshold `_SPREADS` spreads from the median of (n,) values, or logarithms, on one side, within limits.

    The spread is the distance of the median to the 16th or 84th percentile: a standard deviation of a normal
    distribution.
    """
    scaled = np.log(np.maximum(values, 1e-9)) if in_log else values
    middle, edge = np.percentile(scaled, (50, 84 if above else 16))
    chosen = middle + math.copysign(_SPREADS * max(abs(edge - middle), spread), 1 if above else -1)
    low, high = limits
    return float(f"{min(max(math.exp(chosen) if in_log else chosen, low), high):.3g}")


def _measure_problem(name: ProblemKind, kind: _Measured, values: Values) -> ImageProblem | None:
    if not len(values):
        return None
    threshold = choose_threshold(values, above=kind.above, limits=kind.limits, spread=kind.spread, in_log=kind.in_log)
    beyond = values > threshold if kind.above else values < threshold
    where = Compare(OWN_COLUMNS[kind.column], ">" if kind.above else "<", Constant("number", f"{threshold:g}"))
    low, high = float(min(values.min(), threshold)), float(max(values.max(), threshold))
    edges = np.linspace(low, max(high, low + 0.01), _BINS + 1)
    if kind.in_log:
        low = max(low, 0.01)
        edges = np.geomspace(low, max(high, low * 1.01), _BINS + 1)
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    return ImageProblem(
        kind=name,
        count=int(np.count_nonzero(beyond)),
        where=write_condition(where),
        column=kind.column,
        above=kind.above,
        threshold=threshold,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        left_out=0,
    )


def _find_placeholders(catalog: Catalog) -> ImageProblem | None:
    """Pictures that many images show, by equal perceptual hashes: of at least three labels, or ten images."""
    query = (
        "SELECT phash, count(*) AS images FROM images WHERE status = 'indexed' AND phash IS NOT NULL GROUP BY phash "
        f"HAVING images >= {_MANY_IMAGES} OR count(DISTINCT label) >= {_MANY_LABELS} ORDER BY images DESC, phash"
    )
    found = catalog.connection.execute(query).fetchall()
    chosen, others = found[:_MOST_HASHES], found[_MOST_HASHES:]
    if not found and not catalog.connection.execute("SELECT 1 FROM images WHERE phash IS NOT NULL LIMIT 1").fetchone():
        return None
    where = f"phash IN ({', '.join(str(phash) for phash, _ in chosen)})" if chosen else "phash IS NULL"
    count, left_out = (sum(images for _, images in some) for some in (chosen, others))
    return ImageProblem(
        "placeholder", count, where, column=None, above=False, threshold=None, edges=(), counts=(), left_out=left_out
    )
