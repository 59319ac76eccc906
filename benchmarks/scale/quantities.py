"""Which figures of the measured galleries the model predicts, and what each grows with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.scale.costs import APPROXIMATE, BUILDING, SEARCHING, Cost, Widths, fit_cost

Document = Mapping[str, Any]
"""One gallery, measured: what each phase of `benchmarks.scale.phases` gave, by its name; of kinds `reindex KIND`."""

GOOD_WITHIN = 0.2


class Quantity(NamedTuple):
    """A figure of one gallery in seconds or bytes, None where it was not measured; and its growth."""

    find: Callable[[Document], float | None]
    growth: str


def _at(phase: str, part: str, name: str) -> Callable[[Document], float | None]:
    return lambda document: document[phase][part][name] if phase in document else None


def _rows_while_made(document: Document) -> float:
    """Bytes of disk at the end of making, less the vectors, which are there twice: in checkpoints and finished."""
    disk: dict[str, float] = document["make"]["disk"]
    return disk["making"] - 2 * disk["vectors"]


def _of_kind(kind: str) -> dict[str, Quantity]:
    again, asked, plan = f"reindex {kind}", f"ask {kind}", f"{kind} plan"
    return {
        f"{kind}: index bytes": Quantity(_at(asked, "disk", "index"), plan),
        f"{kind}: build memory": Quantity(_at(again, "memory", "anonymous"), plan),
        f"{kind}: serve memory": Quantity(_at(asked, "memory", "anonymous"), plan),
        f"{kind}: build s": Quantity(_at(again, "seconds", "build index"), BUILDING[kind]),
        f"{kind}: measure s": Quantity(_at(again, "seconds", "measure index"), "all numbers"),
        f"{kind}: search s": Quantity(_at(asked, "seconds", "search"), SEARCHING[kind]),
    }


QUANTITIES: Mapping[str, Quantity] = {
    "catalogue bytes": Quantity(_at("make", "disk", "catalogue"), "images"),
    "vector bytes": Quantity(_at("make", "disk", "vectors"), "all numbers"),
    "rows while made bytes": Quantity(_rows_while_made, "images"),
    "build memory": Quantity(_at("make", "memory", "anonymous"), "images"),
    "serve memory": Quantity(_at("ask", "memory", "anonymous"), "images"),
    "change memory": Quantity(_at("add one", "memory", "anonymous"), "images"),
    "scan s": Quantity(_at("make", "seconds", "scan"), "images"),
    "settle s": Quantity(_at("make", "seconds", "settle"), "images"),
    "publish s": Quantity(_at("make", "seconds", "publish"), "stored bytes"),
    "open s": Quantity(_at("ask", "seconds", "open"), "stored bytes"),
    "flat: search s": Quantity(_at("ask", "seconds", "search"), "numbers"),
    "filter by label s": Quantity(_at("ask", "seconds", "search, label"), "images"),
    "filter by metadata s": Quantity(_at("ask", "seconds", "search, metadata"), "images"),
    "facets s": Quantity(_at("ask", "seconds", "facets"), "images"),
    "verify s": Quantity(_at("verify", "seconds", "verify"), "stored bytes"),
    "change s": Quantity(_at("add one", "seconds", "change"), "images"),
    "remove s": Quantity(_at("remove one", "seconds", "change"), "images"),
    "backup s": Quantity(_at("backup", "seconds", "backup"), "images"),
    **{name: quantity for kind in APPROXIMATE for name, quantity in _of_kind(kind).items()},
}


def take_medians(galleries: Mapping[int, Sequence[Document]], name: str) -> dict[int, float]:
    """The median of a quantity by number of images, where it was measured."""
    found = {}
    for images, documents in galleries.items():
        values = [value for document in documents if (value := QUANTITIES[name].find(document)) is not None]
        if values:
            found[images] = statistics.median(values)
    return found


def fit_all(
    galleries: Mapping[int, Sequence[Document]], widths: Widths, *, small: Sequence[int]
) -> dict[str, Cost]:
    """The cost of every quantity that was measured at two of the `small` numbers of images, by these alone."""
    costs = {}
    for name, quantity in QUANTITIES.items():
        measured = {images: value for images, value in take_medians(galleries, name).items() if images in small}
        if len(measured) > 1 and min(measured.values()) > 0:
            costs[name] = fit_cost(measured, widths, growth=quantity.growth)
    return costs


class Check(NamedTuple):
    """A prediction held against what was measured."""

    quantity: str
    images: int
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    @property
    def is_good(self) -> bool:
        """Whether it is within 20 % of what was measured."""
        return abs(self.ratio - 1) <= GOOD_WITHIN


def check_all(
    galleries: Mapping[int, Sequence[Document]], costs: Mapping[str, Cost], widths: Widths
) -> Iterator[Check]:
    """Every prediction that can be held against a measurement, by quantity, small numbers of images first."""
    for name, cost in costs.items():
        for images, measured in sorted(take_medians(galleries, name).items()):
            yield Check(name, images, cost.at(images, widths), measured)
