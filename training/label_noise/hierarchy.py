"""Class hierarchy for semantic label noise, from a CSV of `class,parent`."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index.errors import InputError
from index.text import printable_path

# Of every node its children, and of every child the numbers of the classes below it; a leaf is its own number.
_Branches = dict[str, dict[str | int, list[int]]]


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A forest with the classes as leaves.

    Every class is a leaf below a node of its own, so that a class may also be the ancestor of others: "dog" is
    then a sibling of the breeds below the node dog.

    Attributes:
        paths: of every class, the nodes from its own up to its root. A node has the same parent in all paths.
    """

    paths: Mapping[str, tuple[str, ...]]

    def relatives(self, classes: Sequence[str]) -> list[list[list[int]]]:
        """For every class, the branches that it may be confused with, in a tree of these classes only.

        They hang from the first node on the way up from the class that has several children: its children but
        the one that the class lies in, each as the numbers of the classes below it.
        """
        below: _Branches = defaultdict(dict)
        for number, name in enumerate(classes):
            if name not in self.paths:
                raise InputError(f"class {printable_path(name)!r} is not in the hierarchy; add it there")
            child: str | int = number
            for node in self.paths[name]:
                below[node].setdefault(child, []).append(number)
                child = node
        return [self._branches(number, name, below) for number, name in enumerate(classes)]

    def _branches(self, number: int, name: str, below: _Branches) -> list[list[int]]:
        child: str | int = number
        for node in self.paths[name]:
            if len(below[node]) > 1:
                return [numbers for other, numbers in below[node].items() if other != child]
            child = node
        raise InputError(
            f"class {printable_path(name)!r} has no relative in the hierarchy: it is alone under its root "
            f"{printable_path(str(child))!r}; give that a parent which other classes share"
        )


def read_hierarchy(path: Path, *, classes: Sequence[str]) -> Hierarchy:
    """The ancestors of the classes, from a CSV file.

    It is UTF-8, has the columns `class` and `parent` (others are ignored) and a row for every class and inner node; a
    node with an empty parent, or without a row, is a root. Several roots are allowed and are not joined: classes under
    different roots are unrelated.
    """
    if not path.is_file():
        raise InputError(f"{_shown(path)}: no such file; expected a CSV of class,parent")
    parents, lines = _read_parents(path)
    known = {*parents, *parents.values()}
    if missing := [name for name in classes if name not in known]:
        named = ", ".join(repr(printable_path(name)) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(
            f"{_shown(path)}: {len(missing)} of the classes not found: {named}; add a row class,parent for each"
        )
    for node in parents:  # all of them: a cycle is an error wherever it lies
        _climb(node, parents, path=path, lines=lines)
    return Hierarchy({name: _climb(name, parents, path=path, lines=lines) for name in classes})


def _shown(path: Path) -> str:
    return printable_path(str(path))


def _read_parents(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    parents: dict[str, str] = {}  # empty at a root
    lines: dict[str, int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"class", "parent"} <= set(columns):
                raise InputError(
                    f"{_shown(path)}: expected a header with the columns class,parent; found {columns}"
                )
            for row in rows:
                node, parent = (row["class"] or "").strip(), (row["parent"] or "").strip()
                where = f"{_shown(path)}, line {rows.line_num}"
                if not node:
                    raise InputError(f"{where}: the class is empty")
                if node in parents:
                    raise InputError(
                        f"{where}: {printable_path(node)!r} stands in line {lines[node]} already, with the parent "
                        f"{printable_path(parents[node])!r}; keep one row"
                    )
                parents[node], lines[node] = parent, rows.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{_shown(path)}: not a readable UTF-8 CSV file: {error}") from error
    return parents, lines


def _climb(node: str, parents: Mapping[str, str], *, path: Path, lines: Mapping[str, int]) -> tuple[str, ...]:
    climbed = {node: None}  # a dict for its order
    while above := parents.get(node):
        if above in climbed:
            raise InputError(
                f"{_shown(path)}, line {lines[node]}: the parent {printable_path(above)!r} of "
                f"{printable_path(node)!r} lies below it: the hierarchy runs in a circle"
            )
        climbed[above] = None
        node = above
    return tuple(climbed)
