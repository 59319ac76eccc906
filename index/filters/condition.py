"""Conditions of a filter, as a tree that is independent of SQL; `index.filters.parser` has their meaning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from index.measures import MEASURES

Sign: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in a filter: the text of a number, "1" or "0" of a truth, or a text as it was given."""

    kind: Literal["number", "truth", "text"]
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of nested metadata, by names; or, if `is_own`, one that every item has."""

    names: tuple[str, ...]
    is_own: bool = False

    @property
    def holds(self) -> Literal["any", "text", "bytes"]:
        """The column's values: numbers and texts, texts, or bytes of paths."""
        own: dict[str, Literal["text", "bytes"]] = {"label": "text", "tag": "text", "path": "bytes", "source": "bytes"}
        return own.get(self.names[0], "any") if self.is_own else "any"


Order: TypeAlias = tuple[Column, Literal["", "-"]]
"""The column that images are sorted by, and a minus where the greatest value is the first."""
DERIVED = {
    "small_side": "min(images.width, images.height)",
    "aspect": "max(images.width, images.height) / CAST(min(images.width, images.height) AS REAL)",
}
"""Columns computed from measures, in SQL: pixels of the shorter side, and the longer side by it."""
_PLAIN = ("id", "label", "tag", "path", "source", "phash", *MEASURES, *DERIVED)
OWN_COLUMNS = {name: Column((name,), is_own=True) for name in _PLAIN}
"""Columns that every item has; `source` is the source's location, and `tag` has any number of values.

`phash` is the perceptual hash, equal in most copies of a picture; for measures see `index.measures`.
"""
LABEL, TAG, PATH, SOURCE = (OWN_COLUMNS[name] for name in ("label", "tag", "path", "source"))


@dataclass(frozen=True, slots=True)
class Compare:
    """The column compared with a constant; truths only by = and !=, paths only with texts."""

    column: Column
    sign: Sign
    constant: Constant


@dataclass(frozen=True, slots=True)
class Among:
    """The column equals one of the constants, of which there is at least one."""

    column: Column
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """The column's text matches a pattern, where % is any characters and _ is one, ignoring case."""

    column: Column
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """The item has no such column, or null in it."""

    column: Column


@dataclass(frozen=True, slots=True)
class HasWord:
    """The word is part of path, label, source or a metadata value, ignoring case.

    Without `folders`, texts that name folders of the machine are skipped: source, absolute paths, metadata named path.
    """

    word: str
    folders: bool = True


@dataclass(frozen=True, slots=True)
class Not:
    """True where the part is false, unknown where it is unknown."""

    part: "Condition"


@dataclass(frozen=True, slots=True)
class And:
    """True where all parts are, false where one is, else unknown."""

    parts: "tuple[Condition, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """True where one part is, false where all are, else unknown."""

    parts: "tuple[Condition, ...]"


Leaf: TypeAlias = Compare | Among | Like | IsNull | HasWord
Condition: TypeAlias = Leaf | Not | And | Or


def join(parts: Sequence[Condition], kind: type[And] | type[Or] = And) -> Condition:
    """All of the parts, or any of them; a single part stays itself."""
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def list_leaves(condition: Condition) -> Iterator[Leaf]:
    """The leaves of the tree, from left to right."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from list_leaves(part)
        case Not(part):
            yield from list_leaves(part)
        case _:
            yield condition


def list_columns(condition: Condition) -> tuple[Column, ...]:
    """The columns in a condition, each once."""
    leaves = (leaf for leaf in list_leaves(condition) if not isinstance(leaf, HasWord))
    return tuple(dict.fromkeys(leaf.column for leaf in leaves))
