"""The page of a comparison: its table, and side by side what two candidates find, in one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Ids
from index.evaluation.comparison import PairedDifference
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores
from index.vectors.exact import search
from retrieval_app.comparing.scoring import Comparison, Figure, Pair, Scoring
from retrieval_app.reports.standalone import bundle_scripts, draw_document, draw_picture, write_document

_WRONG_SHARE = 3  # of both-wrong queries there are so many times fewer
HITS = 6
SIDE = 128
"""Longest side of the pictures, in pixels."""
MOST_PICTURES = 2400
"""On the page, which then has some 12 MB."""
_READ_AHEAD = 64
_STYLES = ("core/base.css", "reports/compare.css")
_INSTEAD = {"core/url_state.js": "reports/local_state.js"}
Hits = Mapping[tuple[int, int], list[tuple[int, float]]]
"""(candidate, query) to the hits, best first: the row of each, and its cosine."""


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


Samples = Mapping[tuple[int, int], PairSample]


def write_compare_page(
    comparison: Comparison, out: Path, *, shown: int, seed: int, progress: Progress = no_progress
) -> int:
    """Write the page into one HTML file; how many pictures are on it.

    Args:
        out: the file; it is replaced in one step.
        shown: queries of every two candidates of which one is right and the other wrong; fewer where the page would
            have too many pictures.
        seed: of their drawing.
        progress: told (done, total) of the pictures.

    Raises:
        InputError: the file cannot be written.
    """
    samples = draw_samples(comparison.scoring, shown=shown, seed=seed)
    board = _Board(comparison)
    found = board.rank(samples)
    while len(board.list_pictures(samples, found)) > MOST_PICTURES and shown > 2:
        shown = shown * 3 // 4
        samples = {pair: sample.cut(shown) for pair, sample in samples.items()}
    drawn = board.draw(board.list_pictures(samples, found), progress=progress)
    content = {**_describe(comparison), **board.describe(samples, found), **drawn}
    script = bundle_scripts("reports/compare.js", instead=_INSTEAD)
    parts = draw_document("compare.html", styles=_STYLES, script=script, data=content, source=content["source"])
    write_document(parts, out)
    return len(drawn["pictures"])


class _Board:
    """What is shown side by side."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison, self._scoring = comparison, comparison.scoring
        self._photos = comparison.photos.photos

    def rank(self, samples: Samples) -> Hits:
        """The first hits of every candidate for the queries of the samples that it takes part in."""
        hits: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for place, embedded in enumerate(self._comparison.embedded):
            parts = [sample.queries for pair, sample in samples.items() if place in pair]
            asked: Ids = np.unique(np.concatenate(parts))
            rows = self._scoring.queries[asked]
            nearest = search(embedded.vectors[rows], embedded.vectors, k=HITS, own=rows)
            hits.update({(place, query): nearest.of(n) for n, query in enumerate(asked.tolist())})
        return hits

    def list_pictures(self, samples: Samples, hits: Hits) -> list[int]:
        """The rows of all photos that are shown, in rising order."""
        rows: set[int] = set()
        for pair, sample in samples.items():
            for query in sample.queries.tolist():
                rows.add(int(self._scoring.queries[query]))
                rows.update(row for place in pair for row, _ in hits[place, query])
        return sorted(rows)

    def draw(self, rows: list[int], *, progress: Progress) -> dict[str, Any]:
        """The pictures of some photos, WebP in base64, and why the empty ones among them are missing."""
        pictures, gone = [], {}
        places = (self._photos[row].place for row in rows)
        drawing = map_ahead(partial(draw_picture, side=SIDE), places, workers=usable_cores(), ahead=_READ_AHEAD)
        for number, (picture, problem) in enumerate(drawing):
            pictures.append(picture)
            if problem:
                gone[number] = problem
            progress(number + 1, len(rows))
        return {"pictures": pictures, "gone": gone}

    def describe(self, samples: Samples, hits: Hits) -> dict[str, Any]:
        """Photos by the numbers of their pictures, queries with their hits, and pairs with their queries."""
        rows = self.list_pictures(samples, hits)
        number = {row: n for n, row in enumerate(rows)}
        asked = sorted({query for sample in samples.values() for query in sample.queries.tolist()})
        place_of = {query: n for n, query in enumerate(asked)}
        needed = {
            (place, query)
            for pair, sample in samples.items()
            for place in pair
            for query in sample.queries.tolist()
        }
        queries = [
            {
                "photo": number[int(self._scoring.queries[query])],
                "hits": {
                    place: [[number[row], round(score, 4)] for row, score in hits[place, query]]
                    for place in range(len(self._comparison.candidates))
                    if (place, query) in needed
                },
            }
            for query in asked
        ]
        return {
            "photos": [[valid_text(self._photos[row].path), self._photos[row].label] for row in rows],
            "queries": queries,
            "pairs": [
                _describe_pair(pair, samples[pair.first, pair.second], place_of) for pair in self._scoring.pairs
            ],
        }


def _describe_pair(pair: Pair, sample: PairSample, place_of: Mapping[int, int]) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "recall": _numbers(pair.recall_at_1),
        "enough": pair.is_enough,
        "map": _numbers(pair.map_at_r),
        "counts": {
            "first": pair.only_first, "second": pair.only_second, "wrong": pair.both_wrong, "right": pair.both_right,
        },
        "shown": {
            name: [place_of[query] for query in getattr(sample, name).tolist()]
            for name in ("first", "second", "wrong")
        },
    }  # fmt: skip


def _describe(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a whole: what the header, the table and the panels show."""
    scoring, scenes = comparison.scoring, comparison.scoring.scenes
    return {
        "source": printable_path(Path(comparison.photos.source).resolve().name),
        "images": len(comparison.photos.photos),
        "asked": len(scoring.queries),
        "skipped": comparison.photos.skipped.total(),
        "ks": list(comparison.ks),
        "candidates": [
            {
                "name": valid_text(one.name),
                "kind": one.kind,
                "width": int(embedded.vectors.shape[1]),
                "speed": embedded.per_second,
                "trained_on": embedded.trained_on,
                "trained": bool(embedded.run_id),
                "recall": [_numbers(scored.recall[k]) for k in comparison.ks],
                "map": _numbers(scored.map_at_r),
                "r_precision": _numbers(scored.r_precision),
                "apart": scored.apart,
            }
            for one, embedded, scored in zip(
                comparison.candidates, comparison.embedded, scoring.scored, strict=True
            )
        ],
        "classes": _count_classes(scoring),
        "scenes": None
        if scenes is None
        else {**scenes.to_json(), "certain": scenes.is_certain, "flattered": scoring.is_flattered},
        "over_scenes": scoring.over_scenes,
    }


def _count_classes(scoring: Scoring) -> list[list[Any]]:
    """[name, queries, right ones of each candidate] of every label that asks."""
    labels = scoring.labels[scoring.queries]
    assert not (labels == UNLABELLED).any()
    asked = np.bincount(labels, minlength=len(scoring.names))
    right = [np.bincount(labels, weights=one.right, minlength=len(scoring.names)) for one in scoring.scored]
    return [
        [name, int(asked[number]), [int(counts[number]) for counts in right]]
        for number, name in enumerate(scoring.names)
        if asked[number]
    ]


def _numbers(found: Figure | PairedDifference) -> list[float]:
    mean = found.value if isinstance(found, Figure) else found.mean
    return [round(number, 6) for number in (mean, found.low, found.high)]
