"""Milvus expressions of conditions, and the fields of an item that they ask.

A collection of Milvus has one JSON field for all that conditions may ask of an item. Milvus knows no null, and compares
a text with no number: so a field is kept as the number that it is, as the text that it is, and as the number that its
text is, each under a key of its own, and what lacks has no key. A condition is written as what makes it true; where
it is negated, as what makes it false, and what is unknown is neither.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from index.filters import condition as tree
from index.filters.to_sql import NUMBER
from index.text import valid_text

FIELDS = "fields"
"""The name of the JSON field."""
MOST_BYTES = 60_000  # of it; Milvus takes 65,536
_SPACE = " \t\n\v\f\r"  # around a stored text that is a number all the same
_EXACT = 2**53  # from here on not every whole number is one of Milvus's
_MOST_DIGITS = 17
_ALL, _NONE = "id >= 0", "id < 0"
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PLAIN = re.compile(r"[A-Za-z0-9]")

Value = str | int | float | None
_Part = Literal["number", "text", "parsed", "truth"]


class _UnsayableError(Exception):
    """Milvus has no words for it."""


def write_milvus(condition: tree.Condition) -> str | None:
    """An expression that is true for the items that fulfil a condition; None where Milvus has no words for it.

    It has none for LIKE and for words, nor for the source of an item.
    """
    try:
        return _write(condition, wanted=True)
    except _UnsayableError:
        return None


def make_fields(values: Iterable[tuple[tree.Column, Value]]) -> str | None:
    """The JSON field of an item, of its values by column; None where Milvus cannot hold it as it is.

    A value is as SQLite has it: a truth is 1 or 0, a list is its JSON text.
    """
    fields: dict[str, str | float] = {}
    for column, value in values:
        if value is None:
            continue
        try:
            if isinstance(value, str):
                fields.setdefault(_key(column, "text"), value)
                parsed = _find_number(value.strip(_SPACE))
                if parsed is not None:
                    fields.setdefault(_key(column, "parsed"), parsed)
                if value.lower() in ("true", "false"):
                    fields.setdefault(_key(column, "truth"), float(value.lower() == "true"))
            else:
                fields.setdefault(_key(column, "number"), _check_number(value))
        except _UnsayableError:
            return None
    text = json.dumps(fields, ensure_ascii=False)
    try:
        return text if len(text.encode()) <= MOST_BYTES else None
    except UnicodeEncodeError:
        return None


def _write(condition: tree.Condition, *, wanted: bool) -> str:
    """What makes a condition true, or false, as is wanted."""
    match condition:
        case tree.Not(part):
            return _write(part, wanted=not wanted)
        case tree.And(parts) | tree.Or(parts):
            is_all = isinstance(condition, tree.And) is wanted
            return _join([_write(part, wanted=wanted) for part in parts], word="and" if is_all else "or")
        case tree.Compare(column, sign, constant):
            return _compare(column, sign if wanted else _NEGATED[sign], constant)
        case tree.Among(column, constants):
            sign = "=" if wanted else "!="
            said = [_compare(column, sign, constant) for constant in constants]
            return _join(said, word="or" if wanted else "and")
        case tree.IsNull(column):
            return _write_null(column, wanted=wanted)
        case _:
            raise _UnsayableError


def _join(parts: Sequence[str], *, word: str) -> str:
    return f"({f' {word} '.join(parts)})" if len(parts) > 1 else parts[0]


def _write_null(column: tree.Column, *, wanted: bool) -> str:
    if column == tree.OWN_COLUMNS["id"]:
        return _NONE if wanted else _ALL
    if column == tree.SOURCE:
        raise _UnsayableError
    there = f"((exists {_reach(column, 'number')}) or (exists {_reach(column, 'text')}))"
    return f"(not ({there}))" if wanted else there


def _compare(column: tree.Column, sign: str, constant: tree.Constant) -> str:
    if column == tree.OWN_COLUMNS["id"]:
        return _compare_id(sign, constant)
    if column == tree.SOURCE or (column == tree.PATH and constant.kind != "text"):
        raise _UnsayableError
    if sign == "!=":
        return f"({_write_null(column, wanted=False)} and (not {_compare(column, '=', constant)}))"
    word = "==" if sign == "=" else sign

    def ask(part: _Part, value: str) -> str:
        return f"{_reach(column, part)} {word} {value}"

    number = _find_number(constant.text)
    if constant.kind == "text":
        text = _quote(constant.text, column)
        is_either = number is not None and column.holds == "any"
        asked = [ask("text", text), *([ask("number", _write_number(number))] if is_either else [])]
    else:
        parts: list[_Part] = ["number", "parsed", *(["truth"] if constant.kind == "truth" else [])]  # type: ignore[list-item]
        asked = [ask(part, _write_number(number)) for part in parts]
    return f"({' or '.join(asked)})"


def _compare_id(sign: str, constant: tree.Constant) -> str:
    number = _find_number(constant.text)
    if number is None:  # a text and a number are never equal, and have no order
        return _ALL if sign == "!=" else _NONE
    if number == int(number):
        return f"id {'==' if sign == '=' else sign} {int(number)}"
    if sign in ("=", "!="):
        return _NONE if sign == "=" else _ALL
    return f"id <= {math.floor(number)}" if sign[0] == "<" else f"id >= {math.ceil(number)}"


def _find_number(text: str) -> float | None:
    """The number that a text is, if it is one."""
    if not NUMBER.fullmatch(text):
        return None
    if not text.lstrip("+-").isdecimal():
        return _check_number(float(text))
    if len(text) > _MOST_DIGITS:
        raise _UnsayableError
    return _check_number(int(text))


def _check_number(value: int | float) -> float:
    is_exact = abs(value) < _EXACT if isinstance(value, int) else math.isfinite(value)
    if not is_exact:
        raise _UnsayableError
    return float(value)


def _write_number(number: float | None) -> str:
    assert number is not None
    return repr(number)


def _quote(text: str, column: tree.Column) -> str:
    """A text as a literal: Milvus reads the escapes of JSON, but for pairs of surrogates."""
    if column.holds == "bytes" and valid_text(text) != text:
        raise _UnsayableError  # bytes that are no text
    return json.dumps(valid_text(text), ensure_ascii=False)


def _reach(column: tree.Column, part: _Part) -> str:
    return f'{FIELDS}["{_key(column, part)}"]'


def _key(column: tree.Column, part: _Part) -> str:
    """Letters, digits and underscores for any names, and no two the same."""
    names = "_n_".join("".join(map(_spell, name)) for name in column.names)
    return f"{part}_{'own' if column.is_own else 'meta'}_{names}"


def _spell(character: str) -> str:
    return character if _PLAIN.fullmatch(character) else f"_{ord(character):x}_"
