"""Comparison of embeddings as the command does it: checks, embedding, scores, the files, and what is printed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from index.errors import InputError
from index.evaluation.comparison import PairedDifference
from index.output_files import check_own_files, write_csv
from index.text import printable_path, valid_text
from index.text_table import align
from retrieval_app.comparing.compare_page import write_compare_page
from retrieval_app.comparing.embedding import Embedded, Photos, embed_candidate, read_photos, require_outside
from retrieval_app.comparing.public import Candidate, read_candidates
from retrieval_app.comparing.scoring import (
    PAGE_NAME,
    TABLE_NAME,
    TABLE_START,
    Comparison,
    Figure,
    Pair,
    Scored,
    score_candidates,
)
from retrieval_app.reports.duplicates_report import guard_cell

StepProgress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""


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


def run_comparison(
    images: str,
    candidates: Sequence[tuple[str, str]],
    out: Path,
    *,
    labels_file: Path | None,
    ks: Sequence[int],
    shown: int,
    seed: int,
    cache: Path | None,
    workers: int,
    progress: StepProgress,
) -> Comparison:
    """Compare candidates on labelled images, as `retrieval_app.comparing.public.compare` says.

    Raises:
        InputError: images, labels, candidates or a folder that cannot be used as given.
        ModelFileError, GalleryError, RunError: a candidate cannot be used.
    """
    started = time.perf_counter()
    chosen = read_candidates(candidates)
    _check_out(out, images=images, cache=cache)
    photos = read_photos(
        images, labels_file=labels_file, workers=workers, progress=lambda *done: progress("Reading", *done)
    )
    with _feature_folder(cache) as features:
        made = [
            embed_candidate(
                one, photos, cache=cache, features=features, workers=workers,
                progress=lambda *done, number=number: progress(f"Embedding {number} of {len(chosen)}", *done),
            )
            for number, one in enumerate(chosen, start=1)
        ]  # fmt: skip
    photos, embedded = _keep_common(photos, _tell_trained(made))
    labels, names = photos.number_labels()
    scoring = score_candidates(
        [one.vectors for one in embedded], labels, names, clues=photos.clues(), ks=ks,
        progress=lambda *done: progress("Scoring", *done),
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    table, page = out / TABLE_NAME, out / PAGE_NAME
    comparison = Comparison(
        photos, tuple(chosen), embedded, scoring, tuple(sorted({1, *ks})), (table, page),
        seconds=time.perf_counter() - started,
    )  # fmt: skip
    write_query_table(comparison, table)
    write_compare_page(comparison, page, shown=shown, seed=seed, progress=lambda *done: progress("Drawing", *done))
    return comparison


def _check_out(out: Path, *, images: str, cache: Path | None) -> None:
    require_outside(out, source=images)
    if cache is not None:
        require_outside(cache, source=images, flag="--cache")
    if out.exists() and not out.is_dir():
        raise InputError(
            f"{printable_path(str(out))}: expected a folder to write, found a file; give another --out"
        )
    check_own_files(out, (TABLE_NAME, PAGE_NAME), header=TABLE_START)


@contextmanager
def _feature_folder(cache: Path | None) -> Iterator[Path]:
    """Where runs keep features: the cache, or a folder for this comparison alone, which runs of it still share."""
    if cache is not None:
        yield cache
        return
    with TemporaryDirectory(prefix="retrieval-features-") as folder:
        yield Path(folder)


def _tell_trained(made: Sequence[Embedded]) -> list[Embedded]:
    """The same, where models that were exported from a run beside them know what they were trained on."""
    known = {one.run_id: one.trained_on for one in made if one.trained_on is not None}
    return [replace(one, trained_on=known.get(one.run_id, one.trained_on)) for one in made]


def _keep_common(photos: Photos, made: Sequence[Embedded]) -> tuple[Photos, tuple[Embedded, ...]]:
    """The images that every candidate could use, so that all are asked the same, and their vectors.

    Raises:
        InputError: there is none.
    """
    usable = np.all([one.usable for one in made], axis=0)
    rows, problems = np.flatnonzero(usable), Counter[str]()
    for row in np.flatnonzero(~usable).tolist():
        problems[next(one.problems[row] for one in made if row in one.problems)] += 1
    kept = photos.keep(rows, reasons=problems)
    if not len(rows):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(kept.skipped.items()))
        raise InputError(f"{printable_path(photos.source)}: no image that every candidate can use: {reasons}")
    return kept, tuple(one.keep(rows) for one in made)


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
