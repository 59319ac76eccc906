"""The tree of classes that semantic label noise needs: from a CSV of `class,parent`, or from WordNet's own files."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from index.errors import InputError
from index.text import printable_path

_WORDNET_ID = re.compile(r"n\d{8}")
_HYPERNYMS = ("@", "@i")  # of a kind, and of a named individual
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
    """The ancestors of the classes, from a CSV file or from a folder with WordNet's database files.

    A CSV (UTF-8) has the columns `class` and `parent` (others are ignored) and a row for every class and inner
    node; a node with an empty parent, or without a row, is a root. Several roots are allowed and are not joined:
    classes under different roots are unrelated.

    The folder is `dict/` of a WordNet 3 download (wndb(5WN)): `data.noun`, and `index.noun` where a class is a
    word. A class is a synset id such as n02124075 (ImageNet's are those of WordNet 3.0) or a noun such as
    "Egyptian cat". The root is the most specific synset with a sense of every class below it, that is the one
    with the most hypernyms above it; of a word's senses the first below the root counts, and of a synset's
    hypernyms the first that leads there: the path that a depth-first search in the file's order finds.
    """
    if path.is_dir():
        return _read_wordnet(path, classes=classes)
    if not path.is_file():
        raise InputError(f"{_shown(path)}: no such file; expected a CSV of class,parent or WordNet's dict folder")
    return _read_csv(path, classes=classes)


def _shown(path: Path) -> str:
    return printable_path(str(path))


def _require_all(missing: Sequence[str], *, path: Path, advice: str) -> None:
    if missing:
        named = ", ".join(repr(printable_path(name)) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(f"{_shown(path)}: {len(missing)} of the classes not found: {named}; {advice}")


def _read_csv(path: Path, *, classes: Sequence[str]) -> Hierarchy:
    parents, lines = _read_parents(path)
    known = {*parents, *parents.values()}
    missing = [name for name in classes if name not in known]
    _require_all(missing, path=path, advice="add a row class,parent for each")
    for node in parents:  # all of them: a cycle is an error wherever it lies
        _climb(node, parents, path=path, lines=lines)
    return Hierarchy({name: _climb(name, parents, path=path, lines=lines) for name in classes})


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


def _read_wordnet(folder: Path, *, classes: Sequence[str]) -> Hierarchy:
    data = folder / "data.noun"
    hypernyms = dict(_read_synsets(data))
    unknown = [name for name in classes if _WORDNET_ID.fullmatch(name) and name not in hypernyms]
    _require_all(unknown, path=data, advice="ImageNet's ids are those of WordNet 3.0, not of 3.1")
    words = {name: name.lower().replace(" ", "_") for name in classes if name not in hypernyms}
    index = folder / "index.noun"
    senses_of_word = dict(_read_senses(index, wanted=set(words.values()))) if words else {}
    missing = [name for name, word in words.items() if word not in senses_of_word]
    _require_all(missing, path=index, advice="name them by WordNet's nouns or ids, or give a CSV of class,parent")
    senses = {name: senses_of_word[words[name]] if name in words else [name] for name in classes}

    above = {sense: _find_ancestors(sense, hypernyms, data=data) for found in senses.values() for sense in found}
    shared = set.intersection(*(set().union(*(above[sense] for sense in found)) for found in senses.values()))
    if not shared:
        raise InputError(f"{_shown(data)}: no synset lies above all {len(classes)} classes")
    depths = {node: len(_find_ancestors(node, hypernyms, data=data)) for node in shared}
    root = max(shared, key=lambda node: (depths[node], node))
    paths = {}
    for name, found in senses.items():
        sense = next(sense for sense in found if root in above[sense])
        paths[name] = _find_path(sense, root, hypernyms, data=data)
    return Hierarchy(paths)


def _find_ancestors(synset: str, hypernyms: Mapping[str, list[str]], *, data: Path) -> set[str]:
    found, open_ends = {synset}, [synset]
    while open_ends:
        node = open_ends.pop()
        if node not in hypernyms:
            raise InputError(f"{_shown(data)}: no synset {node}, which others point to; the file is incomplete")
        new = [above for above in hypernyms[node] if above not in found]
        found.update(new)
        open_ends.extend(new)
    return found


def _find_path(synset: str, root: str, hypernyms: Mapping[str, list[str]], *, data: Path) -> tuple[str, ...]:
    path = [synset]
    while path[-1] != root:
        above = next(node for node in hypernyms[path[-1]] if root in _find_ancestors(node, hypernyms, data=data))
        if above in path:
            raise InputError(f"{_shown(data)}: synset {above} lies above itself; the file is damaged")
        path.append(above)
    return tuple(path)


def _read_synsets(data: Path) -> Iterator[tuple[str, list[str]]]:
    """Synset id and its hypernyms, from lines of

    offset lex_filenum n word_count(hex) {word lex_id} pointer_count {symbol offset pos source/target} | gloss
    """
    for where, fields in _read_fields(data):
        try:
            first = 5 + 2 * int(fields[3], 16)
            count = int(fields[first - 1])
            pointers = [(fields[first + 4 * i], fields[first + 4 * i + 1]) for i in range(count)]
        except (IndexError, ValueError) as error:
            raise InputError(f"{where}: not a line of WordNet's data.noun; is the download complete?") from error
        yield f"n{fields[0]}", [f"n{offset}" for symbol, offset in pointers if symbol in _HYPERNYMS]


def _read_senses(index: Path, *, wanted: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Word and its synset ids, the most frequent first, from lines of

    lemma n synset_count pointer_count {symbol} sense_count tagged_count {offset}
    """
    for where, fields in _read_fields(index):
        if fields[0] not in wanted:
            continue
        try:
            first = 6 + int(fields[3])
            offsets = fields[first : first + int(fields[2])]
        except (IndexError, ValueError) as error:
            raise InputError(f"{where}: not a line of WordNet's index.noun; is the download complete?") from error
        yield fields[0], [f"n{offset}" for offset in offsets]


def _read_fields(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Where a line stands and its fields; the licence at the top is indented."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:  # replaced: only glosses leave ASCII
            for number, line in enumerate(file, start=1):
                if not line.startswith(" ") and line.strip():
                    yield f"{_shown(path)}, line {number}", line.partition(" | ")[0].split()
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); expected the dict folder of a WordNet 3 download"
        raise InputError(f"{_shown(path)}: {reason}") from error
