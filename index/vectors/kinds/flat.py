"""`flat`: no search structure at all, every search scans the stored vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from index.vectors.kinds.kind import AnnPlan, Sweep, Wanted

if TYPE_CHECKING:
    from index.arrays import Vectors


class Flat:
    """A scan: exact, with nothing to train, to set or to measure."""

    name = "flat"
    summary = "is exact"
    explanation = "every vector is compared, so nothing is missed"
    is_exact = True
    is_reducible = False
    has_full_scores = True
    most_rows = float("inf")
    loose_share = 0.1
    effort = ""
    keeps_effort = False

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """A scan takes no memory of its own; said is what the vectors take."""
        return [AnnPlan(self.name, "Flat", None, 4 * wanted.width * wanted.count, "asked for")]

    def count_training_rows(self, count: int) -> int:
        """None."""
        return 0

    def train(self, index: Any, sample: Vectors) -> None:
        """Nothing to do."""

    def is_of(self, inner: Any) -> bool:
        """Nothing is: a scan has no file."""
        return False

    def parameters(self, effort: int, **others: Any) -> Any:
        """None."""
        return None

    def most_effort(self, index: Any) -> int:
        """Every search looks at all."""
        return 1

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """Nothing can be set."""
        return Sweep((), ())
