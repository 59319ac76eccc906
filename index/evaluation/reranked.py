"""Re-ranking evaluation: MAP@R and precision at ten, before and after."""

from dataclasses import dataclass

import numpy as np

from index.arrays import NO_ID, Floats, Ids
from index.errors import InputError
from index.evaluation.comparison import PairedDifference, paired_bootstrap
from index.evaluation.metrics import Labelled, count_relevant, find_members
from index.gallery.reranking import NEIGHBOURS, POOL, rank_by_neighbours
from index.progress import Progress, no_progress
from index.vectors.exact import search

MOST_QUERIES, MOST_RELEVANT = 1000, 1000  # and relevant items of one query
FIRST = 10
_SEED = 0


@dataclass(frozen=True, slots=True)
class Reranked:
    """Means over at most `MOST_QUERIES` random queries, each (plain, re-ranked), and the gain of MAP@R.

    R is at most `MOST_RELEVANT`; precision at ten is at R for queries with fewer than ten relevant items.
    """

    queries: int
    map_at_r: tuple[float, float]
    precision_at_10: tuple[float, float]
    gain: PairedDifference

    def to_json(self) -> dict[str, object]:
        return {
            "queries": self.queries,
            "map_at_r": list(self.map_at_r),
            "precision_at_10": list(self.precision_at_10),
            "gain": self.gain.mean,
            "gain_interval": [self.gain.low, self.gain.high],
        }


def score_reranked(queries: Labelled, gallery: Labelled, *, progress: Progress = no_progress) -> Reranked:
    """Rank a sample of the queries plainly and re-ranked, all exactly; groups do not count."""
    own = find_members(queries, gallery)
    counts = count_relevant(queries.labels, gallery.labels, own=own)
    findable = np.flatnonzero(counts)
    if not len(findable):
        raise InputError("no query has another image of its label to find")
    drawn = np.random.default_rng(_SEED).permutation(len(findable))[:MOST_QUERIES]
    chosen = findable[np.sort(drawn)]
    relevant = np.minimum(counts[chosen], MOST_RELEVANT)
    depth = min(len(gallery.labels), max(POOL, int(relevant.max()), FIRST))
    found = search(queries.vectors[chosen], gallery.vectors, k=depth, own=own[chosen])
    rows = np.unique(found.rows[:, :POOL])
    near = search(gallery.vectors[rows], gallery.vectors, k=NEIGHBOURS, progress=progress)

    def search_near(wanted: Ids) -> tuple[Floats, Ids]:
        places = np.searchsorted(rows, wanted)
        return near.cosines[places], near.rows[places]

    plain, again = np.empty((len(chosen), 2)), np.empty((len(chosen), 2))
    for place, row in enumerate(chosen.tolist()):
        there = found.rows[place] != NO_ID
        scores, ids = found.cosines[place][there], found.rows[place][there]
        order = rank_by_neighbours(scores, ids, search_near=search_near)
        is_relevant = gallery.labels[ids] == queries.labels[row]
        r = int(relevant[place])
        for values, relevance in ((plain, is_relevant[:r]), (again, is_relevant[order][:r])):
            precision = np.cumsum(relevance) / np.arange(1, len(relevance) + 1)
            first = min(FIRST, r)
            values[place] = (precision * relevance).sum() / r, relevance[:first].sum() / first
    gain = paired_bootstrap(again[:, 0], plain[:, 0], seed=_SEED, clusters=queries.labels[chosen])
    (plain_map, plain_first), (again_map, again_first) = plain.mean(axis=0).tolist(), again.mean(axis=0).tolist()
    return Reranked(len(chosen), (plain_map, again_map), (plain_first, again_first), gain)
