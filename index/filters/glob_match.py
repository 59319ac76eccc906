"""Matching a text of any length with a pattern in time that is linear in the text, for SQLite's filters.

SQLite's own GLOB takes the product of both lengths, and nothing stops it within one call: 900 letters against a text
of 100,000 take a second. So it is asked only where that product is small, and `match_long` elsewhere.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MATCH_LONG = "match_long"
"""Name of the SQL function: (text as a blob, pattern of `write_glob` or `find_glob`) to a truth."""

MOST_STEPS = 100_000  # of GLOB in one call: a millisecond
_LOOKED_AT = 4096  # characters between two looks at the clock

Characters = frozenset[str] | None  # None for any one


class TimeOverError(Exception):
    """A text was not matched in the time that is left."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What lies between two `*` of a pattern: one set of characters for each place.

    `letters` is the part as one text in lower case where it has no other sets than both cases of an ASCII character.
    """

    places: tuple[Characters, ...]
    letters: str | None
    masks: dict[str, int]  # by character, the places that it fits
    wild: int  # the places that every character fits


def allow_long_texts(connection: sqlite3.Connection, *, until: float = math.inf) -> None:
    """Give a connection the function `match_long`, which fails when the monotonic clock is at `until`."""

    def match(text: bytes | None, pattern: str | bytes) -> bool | None:
        if text is None:
            return None
        glob = pattern if isinstance(pattern, str) else pattern.decode("utf-8", "surrogateescape")
        return match_glob(text.decode("utf-8", "surrogateescape"), glob, until=until)

    connection.create_function(MATCH_LONG, 2, match, deterministic=True)


def write_glob(pattern: str) -> str:
    """The pattern for GLOB that matches what a pattern with % and _ does, in whatever case."""
    wild = {"%": "*", "_": "?"}
    return "".join(wild.get(character) or _any_case(character) for character in pattern)


def find_glob(word: str) -> str:
    """The pattern for GLOB that matches a text with the word in it, in whatever case."""
    return f"*{''.join(map(_any_case, word))}*"


def match_glob(text: str, glob: str, *, until: float = math.inf) -> bool:
    """Whether a pattern of characters, `[sets]`, `?` and `*` matches the whole text.

    Raises:
        TimeOverError: the monotonic clock is at `until`.
    """
    text = text.partition("\0")[0]  # where a text ends for SQLite
    parts = _read_glob(glob)
    search = _Search(text, until)
    if len(parts) == 1:
        return len(parts[0].places) == len(text) and search.fits(parts[0], 0)
    first, last = parts[0], parts[-1]
    at, end = len(first.places), len(text) - len(last.places)
    if at > end or not search.fits(first, 0) or not search.fits(last, end):
        return False
    for part in parts[1:-1]:
        found = search.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part.places)
    return True


class _Search:
    def __init__(self, text: str, until: float) -> None:
        self._text, self._until = text, until
        self._lower = text.lower() if text.isascii() else None
        self._check_clock()

    def fits(self, part: _Part, at: int) -> bool:
        """Whether the part is what lies at a place of the text."""
        here = self._text[at : at + len(part.places)]
        return all(places is None or one in places for one, places in zip(here, part.places, strict=True))

    def find(self, part: _Part, start: int, end: int) -> int:
        """Where the part lies first between two places; -1 where it does not."""
        if self._lower is not None and part.letters is not None:
            return self._lower.find(part.letters, start, end)
        if not part.places:
            return start
        size, reached = len(part.places), 0
        whole, masks, wild = 1 << (size - 1), part.masks, part.wild
        for block in range(start, end, _LOOKED_AT):
            self._check_clock()
            for at, one in enumerate(self._text[block : min(block + _LOOKED_AT, end)], block):
                reached = (reached << 1 | 1) & masks.get(one, wild)  # bit n: the last n + 1 characters fit
                if reached & whole:
                    return at + 1 - size
        return -1

    def _check_clock(self) -> None:
        if time.monotonic() > self._until:
            raise TimeOverError


@lru_cache(maxsize=512)
def _read_glob(glob: str) -> tuple[_Part, ...]:
    parts: list[list[Characters]] = [[]]
    at = 0
    while at < len(glob):
        one = glob[at]
        if one == "*":
            parts.append([])
        elif one == "[":  # its sets are plain: the first may be a ], and no range or ^ is written
            close = glob.index("]", at + 2)
            parts[-1].append(frozenset(glob[at + 1 : close]))
            at = close
        else:
            parts[-1].append(None if one == "?" else frozenset(one))
        at += 1
    return tuple(map(_make_part, parts))


def _make_part(places: Sequence[Characters]) -> _Part:
    wild = sum(1 << at for at, place in enumerate(places) if place is None)
    masks: dict[str, int] = {}
    for at, place in enumerate(places):
        for one in place or ():
            masks[one] = masks.get(one, wild) | 1 << at
    return _Part(tuple(places), _read_letters(places), masks, wild)


def _read_letters(places: Sequence[Characters]) -> str | None:
    letters = []
    for place in places:
        one = min(place).lower() if place else ""
        if place is None or not one.isascii() or set(place) != {one, one.upper()}:
            return None
        letters.append(one)
    return "".join(letters)


def _any_case(character: str) -> str:
    """A pattern for GLOB, which knows sets and so the two cases of all letters: LIKE would know those of ASCII only."""
    cases = {character, character.lower(), character.upper()}
    variants = sorted(case for case in cases if len(case) == 1)
    return f"[{''.join(variants)}]" if len(variants) > 1 or character in "*?[" else character
