"""What `retrieval compare` prints: a table of the candidates, who is clearly better, and what to bear in mind."""

from __future__ import annotations

from typing import Any

from index.evaluation.comparison import PairedDifference
from index.text import printable_path, valid_text
from index.text_table import align
from retrieval_app.comparing.candidates import Candidate
from retrieval_app.comparing.comparison import Comparison
from retrieval_app.comparing.embedding import Embedded
from retrieval_app.comparing.scoring import Figure, Pair, Scored


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
        "pairs": [_describe_pair(pair, names) for pair in scoring.pairs],
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


def _describe_pair(pair: Pair, names: list[str]) -> dict[str, Any]:
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
                *map(_show_figure, figures),
                "" if place == 0 else describe_difference(scoring.pair(0, place)),
            )
        )
    lines = [*align(rows, right={1, 2}), *_describe_basis(comparison), *_list_caveats(comparison)]
    return "\n".join([*lines, "", f"Page: {printable_path(str(comparison.files[1]))}"])


def describe_difference(pair: Pair) -> str:
    """A difference in points with its interval, and what it is worth."""
    found = pair.recall_at_1
    low, high = 100 * found.low, 100 * found.high
    few = "" if pair.is_enough else ", too few differ"
    return f"{100 * found.mean:+.1f} [{low:+.1f}, {high:+.1f}] {pair.verdict}{few}"


def _show_figure(figure: Figure) -> str:
    return f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


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


def _list_caveats(comparison: Comparison) -> list[str]:
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
