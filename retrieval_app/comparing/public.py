"""What Python programs call to compare embeddings. Loads nothing heavy before it works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from index.config_values import as_path
from index.errors import InputError
from index.public import as_cache
from index.threads import usable_cores
from retrieval_app.comparing.candidates import split_name

if TYPE_CHECKING:
    from retrieval_app.comparing.compare_job import Comparison

StepProgress = Callable[[str, int, int], None]
SHOWN = 60
"""Queries on the page of every two candidates of which one is right and the other wrong."""


def compare(
    images: str | Path,
    candidates: Sequence[str | Path] | Mapping[str, str | Path],
    out: str | Path,
    *,
    labels: str | Path | None = None,
    k: Iterable[int] = (1, 5, 10),
    shown: int = SHOWN,
    seed: int = 0,
    cache: str | Path | bool = True,
    workers: int | None = None,
    progress: StepProgress = lambda *_: None,
) -> Comparison:
    """Say which of several embeddings finds most among labelled images, and show where they differ.

    Nothing is embedded twice: vectors are kept by model and content, and `build` takes them too.

    Args:
        images: what `build` takes as a source, with labels.
        candidates: two to eight models, galleries, training runs, or `box` for the model that comes with the package;
            by their names, or as `path` and `name=path`.
        out: the folder of the page, `compare.html`, and of the table, `queries.csv`.
        labels: CSV or Parquet of `path,label`, which goes before all other labels.
        k: the K of Recall@K.
        shown: queries on the page of every two candidates of which one is right and the other wrong.
        seed: of their drawing.
        cache: folder of vectors and features; True is your cache folder, False keeps and takes none.
        workers: threads that decode; None is one for each core.
        progress: called with (step, done, total).

    Returns:
        The scores of each, every two side by side, and the files that were written.

    Raises:
        InputError: images without labels, or something that cannot be used as given.
        ModelFileError, GalleryError, RunError: a candidate cannot be used.
    """
    ks = list(k) if isinstance(k, Iterable) else [k]
    if not ks or not all(isinstance(each, int) and each > 0 for each in ks):
        raise InputError(f"k must be whole numbers of at least 1, got {ks}")
    if not isinstance(shown, int) or shown < 1:
        raise InputError(f"shown must be a whole number of at least 1, got {shown!r}")
    from retrieval_app.comparing.compare_job import run_comparison

    return run_comparison(
        str(as_path(images, "images")),
        _as_pairs(candidates),
        as_path(out, "out"),
        labels_file=None if labels is None else as_path(labels, "labels"),
        ks=ks,
        shown=shown,
        seed=seed,
        cache=as_cache(cache),
        workers=workers or usable_cores(),
        progress=progress,
    )


def _as_pairs(candidates: Sequence[str | Path] | Mapping[str, str | Path]) -> list[tuple[str, str]]:
    if isinstance(candidates, Mapping):
        return [(str(name), str(as_path(path, "candidates"))) for name, path in candidates.items()]
    if isinstance(candidates, str | os.PathLike) or not isinstance(candidates, Iterable):
        raise InputError(f"candidates: expected several as str or Path, got {candidates!r}")
    return [split_name(str(as_path(path, "candidates"))) for path in candidates]
