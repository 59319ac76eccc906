"""What a filter asks of an item, as a tree that says nothing of how it is looked up: SQL is one way, a row another.

What its parts mean is told where their text is read, in `index.filters.parser`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Sign: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in a filter: the text of a number, "1" or "0" of a truth, or a text as it was given."""

    kind: Literal["number", "truth", "text"]
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """Metadata of these names, each within that of the one before; or what every item has, if `is_own`."""

    names: tuple[str, ...]
    is_own: bool = False

    @property
    def holds(self) -> Literal["any", "text", "bytes"]:
        """Numbers and texts, only texts, or only the bytes of paths."""
        own: dict[str, Literal["text", "bytes"]] = {"label": "text", "path": "bytes", "source": "bytes"}
        return own.get(self.names[0], "any") if self.is_own else "any"


OWN_COLUMNS = {name: Column((name,), is_own=True) for name in ("id", "label", "path", "source")}
"""What every item has; its source is the location of that."""
LABEL, PATH, SOURCE = OWN_COLUMNS["label"], OWN_COLUMNS["path"], OWN_COLUMNS["source"]


@dataclass(frozen=True, slots=True)
class Compare:
    """The column compared with a constant; a truth is only equal or not, paths only compare with texts."""

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
    """The column's text is that of a pattern, in which % is any characters and _ is one, in whatever case."""

    column: Column
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """The item has no such column, or null in it."""

    column: Column


@dataclass(frozen=True, slots=True)
class HasWord:
    """The word is part of path, label, source or a value of the metadata, in whatever case.

    Without `folders` nothing that names a folder of the machine is looked at: the source, absolute paths, and metadata
    of the name path.
    """

    word: str
    folders: bool = True


@dataclass(frozen=True, slots=True)
class Not:
    """True where the part is false; unknown where that is."""

    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    """True where all parts are, false where one is, else unknown."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where one part is, false where all are, else unknown."""

    parts: tuple[Condition, ...]


Leaf: TypeAlias = Compare | Among | Like | IsNull | HasWord
Condition: TypeAlias = Leaf | Not | And | Or


def join(parts: Sequence[Condition], kind: type[And] | type[Or] = And) -> Condition:
    """All of the parts, or any of them; of one part that itself."""
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def equals(column: Column, text: str) -> Condition:
    """The column is this text."""
    return Compare(column, "=", Constant("text", text))


def list_leaves(condition: Condition) -> Iterator[Leaf]:
    """What the tree joins and negates, from left to right."""
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from list_leaves(part)
        case Not(part):
            yield from list_leaves(part)
        case _:
            yield condition


def list_columns(condition: Condition) -> tuple[Column, ...]:
    """The columns that are named, each once."""
    leaves = (leaf for leaf in list_leaves(condition) if not isinstance(leaf, HasWord))
    return tuple(dict.fromkeys(leaf.column for leaf in leaves))
