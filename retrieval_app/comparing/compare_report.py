"""Report of a comparison: its page in one HTML file, the table of queries, and what is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import UNLABELLED, Ids
from index.durable import write_csv
from index.evaluation.comparison import PairedDifference
from index.progress import Progress, no_progress
from index.text import align, printable_path, valid_text
from index.vectors.exact import search
from retrieval_app.comparing.embedding import Embedded
from retrieval_app.comparing.public import Candidate
from retrieval_app.comparing.scoring import TABLE_START, Comparison, Pair, Scored, Scoring
from retrieval_app.reports.duplicates_report import guard_cell
from retrieval_app.reports.standalone import draw_pictures, write_document

_WRONG_SHARE = 3  # of both-wrong queries there are so many times fewer
HITS = 6
SIDE = 128
"""Longest side of the pictures, in pixels."""
MOST_PICTURES = 2400
"""On the page, which then has some 12 MB."""
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

    Raises:
        InputError: the file cannot be written.
    """
    samples = draw_samples(comparison.scoring, shown=shown, seed=seed)
    hits = _rank(comparison, samples)
    while len(rows := _list_photos(comparison, samples, hits)) > MOST_PICTURES and shown > 2:
        shown = shown * 3 // 4
        samples = {pair: sample.cut(shown) for pair, sample in samples.items()}
    photos = [comparison.photos.photos[row] for row in rows]
    pictures, gone = draw_pictures(
        [photo.place for photo in photos], sides=[SIDE] * len(photos), progress=progress
    )
    data = {
        "candidates": [{"name": printable_path(one.name)} for one in comparison.candidates],
        "classes": _count_classes(comparison.scoring),
        "photos": [
            {
                "path": printable_path(photo.path), "label": photo.label, "problem": gone.get(number),
                "name": None if photo.label is None else printable_path(photo.label), "picture": pictures[number],
            }
            for number, photo in enumerate(photos)
        ],
        **_describe_queries(comparison, samples, hits, number_of={row: number for number, row in enumerate(rows)}),
    }  # fmt: skip
    told = describe_comparison(comparison)
    figures = [
        [*(one["recall"][str(k)] for k in comparison.ks), one["map_at_r"], one["r_precision"]]
        for one in told["candidates"]
    ]
    best = [max(column) for column in zip(*([one["value"] for one in row] for row in figures), strict=True)]
    write_document(
        out, "compare.html", script="compare.js", data=data, told=told,
        source=Path(comparison.photos.source).resolve().name, is_flattered=comparison.scoring.is_flattered,
        names=[*(f"Recall@{k}" for k in comparison.ks), "MAP@R", "R-precision"],
        rows=[
            (one, row, [found["value"] == top for found, top in zip(row, best, strict=True)])
            for one, row in zip(told["candidates"], figures, strict=True)
        ],
        differences=[_show_pair(pair) for pair in comparison.scoring.pairs if pair.first == 0],
        caveats=list_caveats(comparison),
    )  # fmt: skip
    return len(pictures)


def _rank(comparison: Comparison, samples: Samples) -> Hits:
    """The first hits of every candidate for the queries of the samples that it takes part in."""
    hits: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for place, embedded in enumerate(comparison.embedded):
        parts = [sample.queries for pair, sample in samples.items() if place in pair]
        asked: Ids = np.unique(np.concatenate(parts))
        rows = comparison.scoring.queries[asked]
        nearest = search(embedded.vectors[rows], embedded.vectors, k=HITS, own=rows)
        hits.update({(place, query): nearest.of(n) for n, query in enumerate(asked.tolist())})
    return hits


def _list_photos(comparison: Comparison, samples: Samples, hits: Hits) -> list[int]:
    """The rows of all photos that are shown, in rising order."""
    rows: set[int] = set()
    for pair, sample in samples.items():
        for query in sample.queries.tolist():
            rows.add(int(comparison.scoring.queries[query]))
            rows.update(row for place in pair for row, _ in hits[place, query])
    return sorted(rows)


def _describe_queries(
    comparison: Comparison, samples: Samples, hits: Hits, *, number_of: Mapping[int, int]
) -> dict[str, Any]:
    """Queries with their hits, photos by the numbers of their pictures, and pairs with their queries."""
    asked = sorted({query for sample in samples.values() for query in sample.queries.tolist()})
    place_of = {query: n for n, query in enumerate(asked)}
    found: dict[int, dict[int, list[tuple[int, float]]]] = {query: {} for query in asked}
    for pair, sample in samples.items():
        for place, query in product(pair, sample.queries.tolist()):
            found[query][place] = [(number_of[row], round(score, 4)) for row, score in hits[place, query]]
    pairs = [
        {
            "first": pair.first, "second": pair.second, "words": _show_pair(pair)[1],
            "words_back": _show_pair(pair, is_turned=True)[1],
            "counts": {
                "first": pair.only_first, "second": pair.only_second, "wrong": pair.both_wrong,
                "right": pair.both_right,
            },
            "shown": {
                name: [place_of[query] for query in getattr(samples[pair.first, pair.second], name).tolist()]
                for name in ("first", "second", "wrong")
            },
        }
        for pair in comparison.scoring.pairs
    ]  # fmt: skip
    queries = [
        {"photo": number_of[int(comparison.scoring.queries[query])], "hits": found[query]} for query in asked
    ]
    return {"queries": queries, "pairs": pairs}


def _show_pair(pair: Pair, *, is_turned: bool = False) -> tuple[str, str]:
    """The verdict on the second's Recall@1 beside the first's, and the difference in points with its interval."""
    found = pair.recall_at_1
    mean, low, high = (
        (found.mean, found.low, found.high) if not is_turned else (-found.mean, -found.high, -found.low)
    )
    few = "" if pair.is_enough else "; too few differ"
    words = f"{100 * mean:+.1f} points, {100 * low:+.1f} to {100 * high:+.1f}{few}".replace("-", "−")
    return pair.verdict, words


def _count_classes(scoring: Scoring) -> list[list[Any]]:
    """[label, printable, queries, right ones of each candidate] of every label that asks."""
    labels = scoring.labels[scoring.queries]
    assert not (labels == UNLABELLED).any()
    asked = np.bincount(labels, minlength=len(scoring.names))
    right = [np.bincount(labels, weights=one.right, minlength=len(scoring.names)) for one in scoring.scored]
    return [
        [name, printable_path(name), int(asked[number]), [int(counts[number]) for counts in right]]
        for number, name in enumerate(scoring.names)
        if asked[number]
    ]


def write_query_table(comparison: Comparison, path: Path) -> None:
    """Write the table: of each candidate whether its first hit is right (1 or 0), and the query's share of its MAP@R.

    A path, label or name that a spreadsheet would take for a formula has an apostrophe before it.
    """
    scoring, photos = comparison.scoring, comparison.photos.photos
    names = [guard_cell(valid_text(one.name)) for one in comparison.candidates]
    header = [*TABLE_START, *(f"{what} {name}" for name in names for what in ("right", "map_at_r"))]
    scores = [one.scores for one in scoring.scored]
    rows = (
        [
            guard_cell(photos[row].path),
            guard_cell(photos[row].label or ""),
            photos[row].sha256,
            *(
                value
                for one in scores
                for value in (int(one.hits[1][query]), round(float(one.average_precision[query]), 6))
            ),
        ]
        for query, row in enumerate(scoring.queries.tolist())
    )
    write_csv(path, header, rows)


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one JSON document; differences are what the second of a pair has more than the first."""
    scoring, names = comparison.scoring, [valid_text(one.name) for one in comparison.candidates]
    rows = zip(comparison.candidates, comparison.embedded, scoring.scored, strict=True)
    return {
        "images": valid_text(comparison.photos.source),
        "count": len(comparison.photos.photos),
        "queries": len(scoring.queries),
        "lone_queries": scoring.lone,
        "labels": len(scoring.names),
        "skipped": dict(sorted(comparison.photos.skipped.items())),
        "candidates": [_describe_candidate(*row) for row in rows],
        "pairs": [_pair_to_json(pair, names) for pair in scoring.pairs],
        "intervals_over": "scenes" if scoring.over_scenes else "queries",
        "scenes": None
        if scoring.scenes is None
        else {**scoring.scenes.to_json(), "flattering": scoring.is_flattered},
        "seconds": comparison.seconds,
        "files": [str(path) for path in comparison.files],
    }


def _describe_candidate(candidate: Candidate, embedded: Embedded, scored: Scored) -> dict[str, Any]:
    return {
        "name": valid_text(candidate.name),
        "kind": candidate.kind,
        "path": valid_text(str(candidate.path)),
        "width": int(embedded.vectors.shape[1]),
        "images_per_second": embedded.per_second,
        "embedded": embedded.embedded,
        "from_cache": embedded.from_cache,
        "from_gallery": embedded.from_gallery,
        "trained_on": embedded.trained_on,
        "run_id": embedded.run_id,
        "recall": {str(k): figure.to_json() for k, figure in scored.recall.items()},
        "map_at_r": scored.map_at_r.to_json(),
        "r_precision": scored.r_precision.to_json(),
        "recall_at_1_apart": scored.apart,
    }


def _pair_to_json(pair: Pair, names: list[str]) -> dict[str, Any]:
    def describe(found: PairedDifference) -> dict[str, Any]:
        return {"value": found.mean, "interval": [found.low, found.high], "p_value": found.p_value}

    return {
        "first": names[pair.first],
        "second": names[pair.second],
        "recall_at_1": describe(pair.recall_at_1),
        "map_at_r": describe(pair.map_at_r),
        "only_first_right": pair.only_first,
        "only_second_right": pair.only_second,
        "both_right": pair.both_right,
        "both_wrong": pair.both_wrong,
    }


def format_comparison(comparison: Comparison) -> str:
    """The comparison for people."""
    scoring, first = comparison.scoring, printable_path(comparison.candidates[0].name)
    last = comparison.ks[-1]
    recalls = ["Recall@1", *([f"Recall@{last}"] if last > 1 else [])]
    header = ["", "width", "images/s", *recalls, "MAP@R", "R-precision", f"Recall@1 against {first}"]
    rows: list[tuple[str, ...]] = [tuple(header)]
    for place, (candidate, embedded, scored) in enumerate(
        zip(comparison.candidates, comparison.embedded, scoring.scored, strict=True)
    ):
        figures = [
            scored.recall[1],
            *([scored.recall[last]] if last > 1 else []),
            scored.map_at_r,
            scored.r_precision,
        ]
        rows.append(
            (
                printable_path(candidate.name),
                f"{embedded.vectors.shape[1]}",
                "-" if embedded.per_second is None else f"{embedded.per_second:,.0f}",
                *(f"{100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]" for one in figures),
                "" if place == 0 else _describe_difference(scoring.pair(0, place)),
            )
        )
    lines = [*align(rows, right={1, 2}), *_describe_basis(comparison), *list_caveats(comparison)]
    return "\n".join([*lines, "", f"Page: {printable_path(str(comparison.files[1]))}"])


def _describe_difference(pair: Pair) -> str:
    """A difference in points with its interval, and what it is worth."""
    found = pair.recall_at_1
    low, high = 100 * found.low, 100 * found.high
    few = "" if pair.is_enough else ", too few differ"
    return f"{100 * found.mean:+.1f} [{low:+.1f}, {high:+.1f}] {pair.verdict}{few}"


def _describe_basis(comparison: Comparison) -> list[str]:
    scoring, photos = comparison.scoring, comparison.photos
    over = "scenes" if scoring.over_scenes else "queries"
    lone = f" ({scoring.lone:,} more have no other image of their label)" if scoring.lone else ""
    lines = [
        f"%, over the same {len(scoring.queries):,} queries among {len(photos.photos):,} images{lone}; in brackets "
        f"95 % intervals over {over}"
    ]
    if photos.skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(photos.skipped.items()))
        lines.append(f"skipped files: {reasons}")
    for candidate, embedded in zip(comparison.candidates, comparison.embedded, strict=True):
        known = [(embedded.from_cache, "from the cache"), (embedded.from_gallery, "from the gallery")]
        parts = [f"{embedded.embedded:,} images embedded", *(f"{n:,} {where}" for n, where in known if n)]
        lines.append(f"{printable_path(candidate.name)}: {', '.join(parts)}")
    return lines


def list_caveats(comparison: Comparison) -> list[str]:
    scoring, lines = comparison.scoring, []
    for candidate, embedded in zip(comparison.candidates, comparison.embedded, strict=True):
        if embedded.trained_on:
            lines.append(
                f"warning: {printable_path(candidate.name)} was trained on {embedded.trained_on:,} of these images, "
                "which flatters it; compare on others"
            )
        elif embedded.trained_on is None and embedded.run_id:
            lines.append(
                f"note: {printable_path(candidate.name)} was trained, and its file does not say on what: on images of "
                "its training it is flattered"
            )
    if scoring.scenes is not None and scoring.is_flattered:
        apart = ", ".join(
            f"{printable_path(one.name)} {'-' if scored.apart is None else f'{100 * scored.apart:.1f}'}"
            for one, scored in zip(comparison.candidates, scoring.scored, strict=True)
        )
        scenes = scoring.scenes
        kind = "shots of a scene find each other" if scenes.is_certain else "photos may be of one scene"
        lines.append(
            f"warning: {kind} ({scenes.images:,} images in {scenes.count:,} scenes, by {scenes.found_by}); Recall@1 "
            f"where none finds its own scene: {apart}"
        )
    return lines
