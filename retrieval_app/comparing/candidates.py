"""What is compared: models, galleries and runs, each under a name of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from index.errors import InputError
from index.text import printable_path

FEWEST, MOST = 2, 8
BOX = "box"
MODEL, GALLERY, RUN = "model", "gallery", "run"


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
