"""Comparison of embeddings on labelled images, for Python programs. Loads nothing heavy before it works."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path
from index.durable import check_own_files
from index.errors import InputError
from index.paths import user_cache
from index.progress import StepProgress, no_progress
from index.text import printable_path
from index.threads import usable_cores

if TYPE_CHECKING:
    from index.arrays import Vectors

FEWEST, MOST = 2, 8
MODEL, RUN = "model", "run"
TABLE_NAME = "queries.csv"
TABLE_START = ("path", "label", "sha256")


@dataclass(slots=True)
class Candidate:
    """A `model` file or `run` at its path, and what embedding the images with it gave.

    `vectors` are (N, D) float32 unit rows, zeros where there is one of the `problems`, by row. `per_second` and
    `trained_on`, the number of these images that it was trained on, are None where unknown.
    """

    name: str
    kind: str
    path: Path
    vectors: Vectors = field(init=False, repr=False, compare=False)
    problems: dict[int, str] = field(default_factory=dict, repr=False)
    embedded: int = 0
    from_cache: int = 0
    per_second: float | None = None
    trained_on: int | None = None
    run_id: str = ""


def compare(
    images: str | Path,
    candidates: Sequence[str | Path] | Mapping[str, str | Path],
    out: str | Path,
    *,
    labels: str | Path | None = None,
    k: Iterable[int] = (1, 5, 10),
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: StepProgress = no_progress,
) -> dict[str, Any]:
    """Compare several embeddings on the same labelled images; the report that `retrieval compare --json` prints.

    Args:
        images: what `build` takes as a source, with labels.
        candidates: two to eight models, galleries, training runs, or `builtin`; by name, or as `path` and `name=path`.
        out: the folder of the table of queries, `queries.csv`.
        labels: CSV or Parquet of `path,label`, in place of all other labels.
        k: the K of Recall@K.
        cache: folder of vectors; None is your cache folder.
        workers: decoding threads; None is one for each core.
        progress: called with (step, done, total).
    """
    started = time.perf_counter()
    ks = list(k) if isinstance(k, Iterable) else [k]
    if not ks or not all(isinstance(each, int) and each > 0 for each in ks):
        raise InputError(f"k must be whole numbers of at least 1, got {ks}")
    chosen, source, out = read_candidates(candidates), str(as_path(images, "images")), as_path(out, "out")
    labels_file = None if labels is None else as_path(labels, "labels")
    folder = user_cache() if cache is None else as_path(cache, "cache")
    _check_folders(out, folder, source=source)
    from retrieval_app.comparing.compare_report import evaluate_candidates, write_query_table
    from retrieval_app.comparing.embedding import embed_candidates, read_images

    found = read_images(source, labels_file=labels_file, progress=partial(progress, "Reading"))
    found = embed_candidates(chosen, found, cache=folder, workers=workers or usable_cores(), progress=progress)
    report, queries, evaluations = evaluate_candidates(found, chosen, ks=ks, progress=partial(progress, "Scoring"))
    out.mkdir(parents=True, exist_ok=True)
    table = out / TABLE_NAME
    write_query_table(table, found, queries, chosen, evaluations)
    return {**report, "seconds": time.perf_counter() - started, "files": [str(table)]}


def _check_folders(out: Path, cache: Path, *, source: str) -> None:
    """Refuse a folder inside the images, where the next scan would find it, and a foreign file of the same name."""
    from training.data.datasets import require_outside

    require_outside(out, data=Path(source), flag="--out")
    require_outside(cache, data=Path(source), flag="--cache")
    if out.exists() and not out.is_dir():
        raise InputError("expected a folder to write, found a file; give another --out", at=out)
    check_own_files(out, (TABLE_NAME,), header=TABLE_START)


def read_candidates(given: Sequence[str | Path] | Mapping[str, str | Path]) -> list[Candidate]:
    """Candidates from paths, `name=path`, `builtin`, or paths by name; the default name is of the file or folder."""
    if isinstance(given, Mapping):
        pairs = [(str(name), str(as_path(path, "candidates"))) for name, path in given.items()]
    elif isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        raise InputError(f"candidates: expected several as str or Path, got {given!r}")
    else:
        pairs = [_split_name(str(as_path(path, "candidates"))) for path in given]
    if not FEWEST <= len(pairs) <= MOST:
        raise InputError(f"expected {FEWEST} to {MOST} candidates to compare, got {len(pairs)}")
    candidates = []
    for name, text in pairs:
        kind, path = _find_candidate(text)
        named = Path(text) if os.path.isdir(text) else path
        candidates.append(Candidate(name or (named.stem if named.is_file() else named.resolve().name), kind, path))
    for name, count in Counter(one.name for one in candidates).items():
        if count > 1:
            raise InputError(
                f"{count} candidates are called {printable_path(name)!r}; give each a name of its own: NAME=PATH"
            )
    return candidates


def _split_name(text: str) -> tuple[str, str]:
    """(name, path) of `NAME=PATH`; the name is empty without one, as in a path that has a `=` in it.

    >>> _split_name("small=builtin"), _split_name("models/a=1.onnx")
    (('small', 'builtin'), ('', 'models/a=1.onnx'))
    """
    name, separator, rest = text.partition("=")
    if not separator or not name.strip() or os.sep in name or os.path.exists(text):
        return "", text
    return name.strip(), rest


def _find_candidate(text: str) -> tuple[str, Path]:
    """The kind and path of a candidate: of a gallery, its model file."""
    from index.markers import is_training_folder
    from index.model.builtin import find_named_model
    from index.model.contract import find_contract
    from index.versions.gallery_identity import FolderState, recognise
    from index.versions.manifest import MODEL_NAME
    from index.versions.versions import find_version

    path, shown = find_named_model(text), printable_path(text)
    if path.is_dir():
        if is_training_folder(path):
            return RUN, path
        if recognise(path) in (FolderState.MARKED, FolderState.DAMAGED):
            return MODEL, find_version(path).folder / MODEL_NAME
        problem = "neither a gallery (`retrieval index build`) nor a run (`retrieval train`); IMAGES come first, once"
        raise InputError(problem, at=shown)
    if path.is_file() and (path.suffix.lower() == ".onnx" or find_contract(path) is not None):
        return MODEL, path
    what = "no model" if path.is_file() else "no such file or folder"
    raise InputError(
        f"{shown}: {what}; a candidate is an .onnx file of `retrieval export`, a gallery, the folder of a training "
        "run, or builtin, the model that comes with the package"
    )
