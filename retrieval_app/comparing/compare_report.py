"""Report of a comparison: HTML page, table of queries, and text."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import UNLABELLED
from index.durable import write_csv
from index.evaluation.comparison import PairedDifference
from index.progress import Progress, no_progress
from index.text import align, printable_path, valid_text
from index.vectors.exact import search
from retrieval_app.comparing.embedding import Embedded
from retrieval_app.comparing.public import TABLE_START
from retrieval_app.comparing.scoring import Comparison, Pair, Scored, Scoring
from retrieval_app.reports.duplicates_report import guard_cell
from retrieval_app.reports.standalone import draw_thumbnails, write_document

_WRONG_SHARE = 3  # of both-wrong queries there are so many times fewer
HITS = 6
SIDE = 128
"""Longest side of the images, in pixels."""
MAX_THUMBNAILS = 2400
"""On the page, which then has some 12 MB."""
Hits = Mapping[tuple[int, int], list[tuple[int, float]]]
"""(candidate, query) to the hits, best first: the row of each, and its cosine."""


Sample = dict[str, list[int]]
"""Queries that two candidates answer differently, or both wrongly, as places among those of the scoring.

`first` are right by the first candidate alone, `second` by the second, `wrong` by neither; each in a random order.
"""


def write_compare_page(
    comparison: Comparison, out: Path, *, shown: int, seed: int, progress: Progress = no_progress
) -> None:
    """Write the page into one HTML file.

    Args:
        out: the file; it is replaced in one step.
        shown: queries of every two candidates of which one is right and the other wrong; fewer where the page would
            have too many images.

    Raises:
        InputError: the file cannot be written.
    """
    samples = _draw_samples(comparison.scoring, shown=shown, seed=seed)
    hits = _rank(comparison, samples)
    while len(rows := _list_photos(comparison.scoring, samples, hits)) > MAX_THUMBNAILS and shown > 2:
        shown = shown * 3 // 4
        samples = [_cut(sample, shown) for sample in samples]
    photos = [comparison.photos.photos[row] for row in rows]
    pictures, gone = draw_thumbnails([photo.place for photo in photos], sides=[SIDE] * len(photos), progress=progress)
    report = describe_comparison(comparison)
    data = {
        "candidates": [{"name": printable_path(one["name"])} for one in report["candidates"]],
        "classes": _count_classes(comparison.scoring),
        "photos": [
            {
                "path": printable_path(photo.path),
                "label": photo.label,
                "problem": gone.get(number),
                "name": None if photo.label is None else printable_path(photo.label),
                "picture": pictures[number],
            }
            for number, photo in enumerate(photos)
        ],
        **_describe_queries(comparison.scoring, samples, hits, number_of={row: n for n, row in enumerate(rows)}),
    }
    figures = [[*one["recall"].values(), one["map_at_r"], one["r_precision"]] for one in report["candidates"]]
    best = [max(one["value"] for one in column) for column in zip(*figures, strict=True)]
    write_document(
        out,
        "compare.html",
        script="compare.js",
        data=data,
        report=report,
        source=Path(comparison.photos.source).resolve().name,
        is_flattered=comparison.scoring.is_flattered,
        names=[*(f"Recall@{k}" for k in report["candidates"][0]["recall"]), "MAP@R", "R-precision"],
        rows=[
            (one, row, [found["value"] == top for found, top in zip(row, best, strict=True)])
            for one, row in zip(report["candidates"], figures, strict=True)
        ],
        differences=[(pair.verdict, _show_pair(pair)) for pair in comparison.scoring.pairs if pair.first == 0],
        caveats=_list_caveats(comparison),
    )


def _draw_samples(scoring: Scoring, *, shown: int, seed: int) -> list[Sample]:
    """A sample for each pair, from one shuffle of all queries, so that pairs share queries and their images."""
    order = np.random.default_rng(seed).permutation(len(scoring.queries))
    samples = []
    for pair in scoring.pairs:
        one, other = scoring.scored[pair.first].right, scoring.scored[pair.second].right
        kinds = {"first": one & ~other, "second": other & ~one, "wrong": ~one & ~other}
        samples.append(_cut({name: order[kept[order]].tolist() for name, kept in kinds.items()}, shown))
    return samples


def _cut(sample: Sample, shown: int) -> Sample:
    """At most `shown` queries on which the two differ, half of each kind if there are as many, and some both wrong."""
    first = min(len(sample["first"]), max(shown - shown // 2, shown - len(sample["second"])))
    most = {"first": first, "second": shown - first, "wrong": max(1, shown // _WRONG_SHARE)}
    return {name: sample[name][:count] for name, count in most.items()}


def _rank(comparison: Comparison, samples: Sequence[Sample]) -> Hits:
    """First hits of every candidate for the queries of its samples."""
    scoring, hits = comparison.scoring, dict[tuple[int, int], list[tuple[int, float]]]()
    for place, embedded in enumerate(comparison.embedded):
        wanted = set[int]()
        for pair, sample in zip(scoring.pairs, samples, strict=True):
            if place in (pair.first, pair.second):
                wanted.update(*sample.values())
        queries = sorted(wanted)
        rows = scoring.queries[queries]
        nearest = search(embedded.vectors[rows], embedded.vectors, k=HITS, own=rows)
        hits.update({(place, query): nearest.of(number) for number, query in enumerate(queries)})
    return hits


def _list_photos(scoring: Scoring, samples: Sequence[Sample], hits: Hits) -> list[int]:
    """Rows of all images on the page, rising."""
    rows: set[int] = set()
    for pair, sample in zip(scoring.pairs, samples, strict=True):
        for query in chain(*sample.values()):
            rows.add(int(scoring.queries[query]))
            rows.update(row for place in (pair.first, pair.second) for row, _ in hits[place, query])
    return sorted(rows)


def _describe_queries(
    scoring: Scoring, samples: Sequence[Sample], hits: Hits, *, number_of: Mapping[int, int]
) -> dict[str, Any]:
    """Queries with their hits as numbers of images, and pairs with their queries."""
    queries: dict[int, dict[str, Any]] = {}
    for pair, sample in zip(scoring.pairs, samples, strict=True):
        for query in chain(*sample.values()):
            one = queries.setdefault(query, {"photo": number_of[int(scoring.queries[query])], "hits": {}})
            for place in (pair.first, pair.second):
                one["hits"][place] = [(number_of[row], round(score, 4)) for row, score in hits[place, query]]
    place_of = {query: place for place, query in enumerate(queries)}
    pairs = [
        {
            "first": pair.first,
            "second": pair.second,
            "words": _show_pair(pair),
            "words_back": _show_pair(pair, is_turned=True),
            "counts": {
                "first": pair.only_first,
                "second": pair.only_second,
                "wrong": pair.both_wrong,
                "right": pair.both_right,
            },
            "shown": {name: [place_of[query] for query in some] for name, some in sample.items()},
        }
        for pair, sample in zip(scoring.pairs, samples, strict=True)
    ]
    return {"queries": list(queries.values()), "pairs": pairs}


def _show_pair(pair: Pair, *, is_turned: bool = False) -> str:
    """The second's Recall@1 less the first's, in points with its interval."""
    found = pair.recall_at_1
    bounds = (-found.mean, -found.high, -found.low) if is_turned else (found.mean, found.low, found.high)
    mean, low, high = (f"{100 * value:+.1f}" for value in bounds)
    few = "" if pair.is_enough else "; too few differ"
    return f"{mean} points, {low} to {high}{few}".replace("-", "−")


def _count_classes(scoring: Scoring) -> list[list[Any]]:
    """[label, printable, queries, right ones of each candidate] of every label with queries."""
    labels = scoring.labels[scoring.queries]
    assert not (labels == UNLABELLED).any()
    totals = np.bincount(labels, minlength=len(scoring.names))
    right = [np.bincount(labels, weights=one.right, minlength=len(scoring.names)) for one in scoring.scored]
    return [
        [name, printable_path(name), int(totals[number]), [int(counts[number]) for counts in right]]
        for number, name in enumerate(scoring.names)
        if totals[number]
    ]


def write_query_table(comparison: Comparison, path: Path) -> None:
    """Write the table of queries: for each candidate, whether its first hit is right (1 or 0), and its MAP@R.

    A path, label or name that a spreadsheet would take for a formula has an apostrophe before it.
    """
    scoring, photos = comparison.scoring, comparison.photos.photos
    names = [guard_cell(valid_text(one.candidate.name)) for one in comparison.embedded]
    header = [*TABLE_START, *(f"{what} {name}" for name in names for what in ("right", "map_at_r"))]

    def list_rows() -> Iterator[list[object]]:
        for query, row in enumerate(scoring.queries.tolist()):
            photo = photos[row]
            cells: list[object] = [guard_cell(photo.path), guard_cell(photo.label or ""), photo.sha256]
            for one in scoring.scored:
                cells += [int(one.right[query]), round(float(one.scores.average_precision[query]), 6)]
            yield cells

    write_csv(path, header, list_rows())


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON; a difference is the second of a pair less the first."""
    scoring, groups = comparison.scoring, comparison.scoring.groups
    names = [valid_text(one.candidate.name) for one in comparison.embedded]
    return {
        "images": valid_text(comparison.photos.source),
        "count": len(comparison.photos.photos),
        "queries": len(scoring.queries),
        "lone_queries": scoring.lone,
        "labels": len(scoring.names),
        "skipped": dict(sorted(comparison.photos.skipped.items())),
        "candidates": [_describe_candidate(*one) for one in comparison.results],
        "pairs": [
            {
                "first": names[pair.first],
                "second": names[pair.second],
                "recall_at_1": _describe_difference(pair.recall_at_1),
                "map_at_r": _describe_difference(pair.map_at_r),
                "only_first_right": pair.only_first,
                "only_second_right": pair.only_second,
                "both_right": pair.both_right,
                "both_wrong": pair.both_wrong,
            }
            for pair in scoring.pairs
        ],
        "intervals_over": "groups" if scoring.over_groups else "queries",
        "groups": None if groups is None else {**groups.to_json(), "flattered": scoring.is_flattered},
        "seconds": comparison.seconds,
        "files": [str(path) for path in comparison.files],
    }


def _describe_candidate(embedded: Embedded, scored: Scored) -> dict[str, Any]:
    return {
        "name": valid_text(embedded.candidate.name),
        "kind": embedded.candidate.kind,
        "path": valid_text(str(embedded.candidate.path)),
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
        "recall_at_1_grouped": scored.grouped,
    }


def _describe_difference(found: PairedDifference) -> dict[str, Any]:
    return {"value": found.mean, "interval": [found.low, found.high], "p_value": found.p_value}


def format_comparison(comparison: Comparison) -> str:
    """The comparison for people."""
    scoring, names = comparison.scoring, [printable_path(one.candidate.name) for one in comparison.embedded]
    ks = sorted({1, max(scoring.scored[0].recall)})
    header = ["", "width", "images/s", *(f"Recall@{k}" for k in ks), "MAP@R", "R-precision"]
    rows = [(*header, f"Recall@1 against {names[0]}")]
    for place, (embedded, scored) in enumerate(comparison.results):
        figures = [*(scored.recall[k] for k in ks), scored.map_at_r, scored.r_precision]
        rows.append(
            (
                names[place],
                f"{embedded.vectors.shape[1]}",
                "-" if embedded.per_second is None else f"{embedded.per_second:,.0f}",
                *(f"{100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]" for one in figures),
                "" if place == 0 else _format_difference(scoring.pair(0, place)),
            )
        )
    lines = [*align(rows, right={1, 2}), *_describe_basis(comparison), *_list_caveats(comparison)]
    return "\n".join([*lines, "", f"Page: {printable_path(str(comparison.files[1]))}"])


def _format_difference(pair: Pair) -> str:
    """A difference in points with its interval, and its verdict."""
    found = pair.recall_at_1
    low, high = 100 * found.low, 100 * found.high
    few = "" if pair.is_enough else ", too few differ"
    return f"{100 * found.mean:+.1f} [{low:+.1f}, {high:+.1f}] {pair.verdict}{few}"


def _describe_basis(comparison: Comparison) -> list[str]:
    scoring, photos = comparison.scoring, comparison.photos
    over = "groups" if scoring.over_groups else "queries"
    lone = f" ({scoring.lone:,} more have no other image of their label)" if scoring.lone else ""
    lines = [
        f"%, over the same {len(scoring.queries):,} queries among {len(photos.photos):,} images{lone}; in brackets "
        f"95 % intervals over {over}"
    ]
    if photos.skipped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(photos.skipped.items()))
        lines.append(f"skipped files: {reasons}")
    for embedded in comparison.embedded:
        known = [(embedded.from_cache, "from the cache"), (embedded.from_gallery, "from the gallery")]
        parts = [f"{embedded.embedded:,} images embedded", *(f"{n:,} {where}" for n, where in known if n)]
        lines.append(f"{printable_path(embedded.candidate.name)}: {', '.join(parts)}")
    return lines


def _list_caveats(comparison: Comparison) -> list[str]:
    scoring, groups, lines = comparison.scoring, comparison.scoring.groups, []
    for embedded in comparison.embedded:
        name = printable_path(embedded.candidate.name)
        if embedded.trained_on:
            lines.append(
                f"warning: {name} was trained on {embedded.trained_on:,} of these images, so its scores are too good; "
                "compare on others"
            )
        elif embedded.trained_on is None and embedded.run_id:
            lines.append(
                f"note: {name} was made by `retrieval train`, and its file does not say on which images: for those its "
                "scores are too good; compare the run's folder as well, and they are counted"
            )
    if groups is not None and scoring.is_flattered:
        grouped = ", ".join(
            f"{printable_path(one.candidate.name)} {'-' if scored.grouped is None else f'{100 * scored.grouped:.1f}'}"
            for one, scored in comparison.results
        )
        kind = "photos of one group find each other" if groups.is_certain else "photos may be of one group"
        lines.append(
            f"warning: {kind} ({groups.images:,} images in {groups.count:,} groups, by {groups.found_by}); grouped "
            f"Recall@1: {grouped}"
        )
    return lines
