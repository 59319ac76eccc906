"""Comparison of embeddings for Python programs, and how candidates are named. Loads nothing heavy before it works."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from index.config_fields import as_path
from index.errors import InputError
from index.public import as_cache
from index.text import printable_path
from index.threads import usable_cores

if TYPE_CHECKING:
    from retrieval_app.comparing.compare_job import Comparison

StepProgress = Callable[[str, int, int], None]
SHOWN = 60
"""Queries on the page of every two candidates of which one is right and the other wrong."""
FEWEST, MOST = 2, 8
BOX = "box"
MODEL, GALLERY, RUN = "model", "gallery", "run"


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A `model`, `gallery` or `run` at its path."""

    name: str
    kind: str
    path: Path


def read_candidates(given: Sequence[tuple[str, str]]) -> list[Candidate]:
    """What (name, path or `box`) name, in their order; who has an empty name is called as its file or folder.

    Raises:
        InputError: there are too few or too many, one is none, or two have one name.
    """
    if not FEWEST <= len(given) <= MOST:
        raise InputError(f"expected {FEWEST} to {MOST} candidates to compare, got {len(given)}")
    found = [_find_candidate(text) for _, text in given]
    names = _name_all([name for name, _ in given], [path for _, path in found])
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(
                f"{count} candidates are called {printable_path(name)!r}; give each a name of its own: NAME=PATH"
            )
    return [Candidate(name, kind, path) for name, (kind, path) in zip(names, found, strict=True)]


def split_name(text: str) -> tuple[str, str]:
    """(name, what it names) of `NAME=PATH`; the name is empty where there is none, as in a path that has a `=` in it.

    >>> split_name("small=box"), split_name("models/a=1.onnx")
    (('small', 'box'), ('', 'models/a=1.onnx'))
    """
    name, separator, rest = text.partition("=")
    if not separator or not name.strip() or os.sep in name or os.path.exists(text):
        return "", text
    return name.strip(), rest


def _find_candidate(text: str) -> tuple[str, Path]:
    from index.marks import is_training_folder
    from index.model.contract import find_contract
    from index.model.in_the_box import find_box
    from index.versions.gallery_identity import Standing, recognise

    if text == BOX:
        return MODEL, find_box()
    path, shown = Path(text), printable_path(text)
    if path.is_dir():
        if is_training_folder(path):
            return RUN, path
        if recognise(path) in (Standing.MARKED, Standing.DAMAGED):
            return GALLERY, path
        raise InputError(
            f"{shown}: a folder, but neither a gallery (`retrieval index build`) nor a run (`retrieval train`), so "
            "nothing that can be compared; IMAGES come first, and once"
        )
    if path.is_file() and (path.suffix.lower() == ".onnx" or find_contract(path) is not None):
        return MODEL, path
    what = "no model" if path.is_file() else "no such file or folder"
    raise InputError(
        f"{shown}: {what}; a candidate is an .onnx file of `retrieval export`, a gallery, the folder of a training "
        f"run, or {BOX}, the model that comes with the package"
    )


def _name_all(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The names; in the place of empty ones those of files or folders, with the folder above where two are alike."""
    short = [
        name or (path.stem if path.is_file() else path.resolve().name)
        for name, path in zip(names, paths, strict=True)
    ]
    counts = Counter(short)
    return [
        name or (usual if counts[usual] == 1 else f"{path.resolve().parent.name}/{usual}")
        for name, usual, path in zip(names, short, paths, strict=True)
    ]
