"""Which queries the page shows of every two candidates: drawn at random, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from retrieval_app.comparing.scoring import Scoring

_WRONG_SHARE = 3  # of both-wrong queries there are so many times fewer


@dataclass(frozen=True, slots=True)
class PairSample:
    """Queries, as places among those of the scoring, that two candidates answer differently, or both wrongly.

    `first` are right by the first candidate alone, `second` by the second; each in a random order.
    """

    first: Ids
    second: Ids
    wrong: Ids

    def cut(self, shown: int) -> PairSample:
        """At most `shown` on which the two differ, half of each kind where there are as many, and some both wrong."""
        first = min(len(self.first), max(shown - shown // 2, shown - len(self.second)))
        return PairSample(
            self.first[:first], self.second[: shown - first], self.wrong[: max(1, shown // _WRONG_SHARE)]
        )

    @property
    def queries(self) -> Ids:
        """All of them."""
        return np.concatenate([self.first, self.second, self.wrong])


def draw_samples(scoring: Scoring, *, shown: int, seed: int) -> dict[tuple[int, int], PairSample]:
    """A sample for every two candidates.

    One shuffle of all queries serves all pairs: each is a fair draw, and pairs share queries, and so their pictures.
    """
    order = np.random.default_rng(seed).permutation(len(scoring.queries))

    def choose(kept: npt.NDArray[np.bool_]) -> Ids:
        return order[kept[order]]

    samples = {}
    for pair in scoring.pairs:
        one, other = scoring.scored[pair.first].right, scoring.scored[pair.second].right
        whole = PairSample(choose(one & ~other), choose(other & ~one), choose(~one & ~other))
        samples[pair.first, pair.second] = whole.cut(shown)
    return samples
