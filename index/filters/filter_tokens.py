"""The words, names, values and signs that the text of a filter is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from index.errors import InputError
from index.text import printable_path

RESERVED = frozenset(("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE"))
_WORD = r"[^\W\d][\w-]*"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.+-]))
    |(?P<word>{_WORD})
    |(?P<single>'(?:[^']|'')*')
    |(?P<double>"(?:[^"]|"")*")
    |(?P<sign><=|>=|<>|!=|==|[=<>(),.])""",
    re.VERBOSE,
)
_SHOWN_CHARACTERS = 30


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a filter.

    Attributes:
        kind: "number", "word", "single" or "double" (by its quotes), "sign", or "end".
    """

    kind: str
    text: str
    start: int

    @property
    def reserved(self) -> str:
        """The word of the language that it is, in capitals, or its sign; empty for all else."""
        if self.kind == "sign":
            return self.text
        return self.text.upper() if self.kind == "word" and self.text.upper() in RESERVED else ""

    @property
    def content(self) -> str:
        """The text without its quotes."""
        quote = self.text[:1]
        return self.text[1:-1].replace(quote * 2, quote) if self.kind in ("single", "double") else self.text


def write_name(name: str) -> str:
    """A name as a filter has it: in double quotes where it would be taken for something else."""
    is_bare = re.fullmatch(_WORD, name) is not None and name.upper() not in RESERVED
    return name if is_bare else '"' + name.replace('"', '""') + '"'


def read_tokens(text: str) -> Iterator[Token]:
    """Every token, and an "end" after the last.

    Raises:
        InputError: a quote is never closed, or a character begins nothing.
    """
    start = 0
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            raise place_error(text, start, _explain(text[start]))
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], start)
        start = match.end()
    yield Token("end", "", len(text))


def place_error(text: str, start: int, problem: str) -> InputError:
    """The error for what begins there."""
    rest = text[start:]
    shown = rest if len(rest) <= _SHOWN_CHARACTERS else rest[:_SHOWN_CHARACTERS] + "…"
    place = f"at character {start + 1}, {printable_path(shown)}" if shown else "at its end"
    return InputError(f"the filter cannot be read {place}: {problem}")


def _explain(character: str) -> str:
    if character in "'\"":
        return f"the quote is never closed; within a text write {character * 2}"
    if character.isdigit() or character in "+-":
        return "expected a number like 20 or -1.5e3; dates and other text go in quotes: '2024-05-31'"
    return "expected a name, a comparison like < or IN, or a value; text goes in quotes: 'text'"
