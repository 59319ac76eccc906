"""Comparison of embeddings as the command does it: checks first, then embedding and scores, then the files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from index.durable import check_own_files
from index.errors import InputError
from index.text import printable_path
from retrieval_app.comparing.compare_report import write_compare_page, write_query_table
from retrieval_app.comparing.embedding import Embedded, Photos, embed_candidate, read_photos, require_outside
from retrieval_app.comparing.public import read_candidates
from retrieval_app.comparing.scoring import (
    PAGE_NAME,
    TABLE_NAME,
    TABLE_START,
    Comparison,
    score_candidates,
)

StepProgress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""


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
    """Compare candidates on labelled images, as `retrieval_app.comparing.public.compare` says."""
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
    # Models that were exported from a run beside them know by it what they were trained on.
    known = {one.run_id: one.trained_on for one in made if one.trained_on is not None}
    made = [replace(one, trained_on=known.get(one.run_id, one.trained_on)) for one in made]
    photos, embedded = _keep_common(photos, made)
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


def _keep_common(photos: Photos, made: Sequence[Embedded]) -> tuple[Photos, tuple[Embedded, ...]]:
    """The images that every candidate could use, so that all are asked the same, and their vectors."""
    usable = np.all([one.usable for one in made], axis=0)
    rows, problems = np.flatnonzero(usable), Counter[str]()
    for row in np.flatnonzero(~usable).tolist():
        problems[next(one.problems[row] for one in made if row in one.problems)] += 1
    kept = photos.keep(rows, reasons=problems)
    if not len(rows):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(kept.skipped.items()))
        raise InputError(f"{printable_path(photos.source)}: no image that every candidate can use: {reasons}")
    return kept, tuple(one.keep(rows) for one in made)
