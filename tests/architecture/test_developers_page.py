"""docs/develop.md names what there is: every room, and every function on the path of an image."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.documents import ROOT

PAGE = (ROOT / "docs/develop.md").read_text(encoding="utf-8")
PACKAGES = ("index", "training", "export", "retrieval_app")
# | `file` | `function`, `Class.function` | what it does |
STEPS = re.findall(r"^\| `(\w+/[\w/]+\.py)` \| ([^|]*) \|", PAGE, re.MULTILINE)


@cache
def defined_in(file: Path) -> set[str]:
    """Functions and classes of a module, and the functions of its classes as `Class.function`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_every_function_on_the_path_of_an_image_is_where_the_page_says() -> None:
    named = [(file, name) for file, cell in STEPS for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(named) >= 25
    assert [(f, n) for f, n in named if not (ROOT / f).is_file() or n not in defined_in(ROOT / f)] == []


def test_the_page_names_every_room() -> None:
    rooms = [
        folder.name
        for package in PACKAGES
        for folder in sorted((ROOT / package).iterdir())
        if (folder / "__init__.py").exists()
    ]
    assert [room for room in rooms if f"`{room}/`" not in PAGE] == []
