"""What every kind of search structure must know: its size, its training, its parameters, and which are worth a try.

A further kind is a file beside this one and a line in `registry.py`. Nothing here loads numpy or faiss, so that the
command line can name the kinds at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from index.arrays import Vectors

ROW_OVERHEAD = 24  # bytes of ids and positions that are held for every vector
BUILDING_OVERHEAD = 48  # the same while it is built: in the order of the vectors, and in that of the index
PROCESS_BYTES = 130_000_000  # of the interpreter and its libraries
_CANDIDATES = (20, 40)
_REDUCED_CANDIDATES = (20, 40, 80, 160)


@dataclass(frozen=True, slots=True)
class Building:
    """What it takes to make an ANN index, estimated.

    Attributes:
        memory_bytes: of the process at its peak, without the vectors that it maps.
        disk_bytes: of its file.
        core_seconds: of training and filling it; divided among the cores.
    """

    memory_bytes: int
    disk_bytes: int
    core_seconds: float


@dataclass(frozen=True, slots=True)
class AnnPlan:
    """An ANN index to be built.

    Attributes:
        type: the name of its kind.
        factory: faiss's name for it; `Flat` is no index of faiss, but a scan of the stored vectors.
        reduced_width: numbers of a vector that the index holds; None: all.
        memory_bytes: what it takes, estimated.
        reason: why it was chosen, for people.
        building: what making it takes; None where there is nothing to make.
    """

    type: str
    factory: str
    reduced_width: int | None
    memory_bytes: int
    reason: str
    building: Building | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The vectors to plan for: `count` of `width` numbers, of which `reduced_width` rotated ones may do (None: all)."""

    count: int
    width: int
    reduced_width: int | None = None


class Sweep(NamedTuple):
    """Settings to be measured: how hard to look, and how many candidates to rank exactly; both rising."""

    efforts: Sequence[int]
    candidates: Sequence[int]


class IndexKind(Protocol):
    """One way to search vectors.

    Attributes:
        name: in `--index-type` and in manifests.
        summary: what it is, in a few words that follow the name, for `--help`.
        explanation: how it searches, in half a sentence for people.
        is_exact: whether it is a scan of the stored vectors, without a file; then nothing is trained or measured.
        is_reducible: whether it may hold fewer, rotated numbers of each vector.
        has_full_scores: whether the scores of one that is not reduced are the vectors' own but for a rounding to bytes.
        most_rows: vectors above which `auto` passes it over.
        loose_share: share of its vectors that may lie beside it before it is built anew.
        effort: faiss's name of how hard it looks.
        keeps_effort: whether the effort is a number of candidates, of which a search keeps as many as it gives.
    """

    name: str
    summary: str
    explanation: str
    is_exact: bool
    is_reducible: bool
    has_full_scores: bool
    most_rows: float
    loose_share: float
    effort: str
    keeps_effort: bool

    def plan(self, wanted: Wanted) -> Sequence[AnnPlan]:
        """What could be built for these vectors, the fastest first and the smallest last."""

    def count_training_rows(self, count: int) -> int:
        """How many of `count` vectors to train with, at least; more than there are is all of them."""

    def train(self, index: Any, sample: Vectors) -> None:
        """Train what `faiss.index_factory` made of a plan, maybe behind a rotation, with (n, D) vectors."""

    def is_of(self, inner: Any) -> bool:
        """Whether an index of faiss, without its rotation, is of this kind."""

    def parameters(self, effort: int, **others: Any) -> Any:
        """faiss's parameters of one search."""

    def most_effort(self, index: Any) -> int:
        """The effort from which on an index looks at nothing more."""

    def sweep(self, most_effort: int, *, is_reduced: bool) -> Sweep:
        """The settings worth measuring."""


def list_candidates(*, is_reduced: bool) -> Sequence[int]:
    """Numbers of candidates worth ranking where scores are nearly exact, or are of fewer numbers."""
    return _REDUCED_CANDIDATES if is_reduced else _CANDIDATES
