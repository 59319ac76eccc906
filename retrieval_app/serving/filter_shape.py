"""The shape of a filter, without a value of it: `label IN (2) AND price < ?`."""

from __future__ import annotations

from index.filters.condition import Among, And, Column, Compare, Condition, HasWord, IsNull, Like, Not, Or

_MOST_CHARACTERS = 300


def describe_shape(condition: Condition) -> str:
    """Columns and comparisons of a filter, at most 300 characters of them."""
    text = _describe(condition)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _describe(condition: Condition) -> str:
    match condition:
        case And(parts) | Or(parts):
            word = " AND " if isinstance(condition, And) else " OR "
            return word.join(_describe_part(part) for part in parts)
        case Not(part):
            return f"NOT ({_describe(part)})"
        case Compare(column, sign, _):
            return f"{_name(column)} {sign} ?"
        case Among(column, constants):
            return f"{_name(column)} IN ({len(constants)})"
        case Like(column, _):
            return f"{_name(column)} LIKE ?"
        case IsNull(column):
            return f"{_name(column)} IS NULL"
        case HasWord():
            return "WORD ?"


def _describe_part(part: Condition) -> str:
    return f"({_describe(part)})" if isinstance(part, And | Or) else _describe(part)


def _name(column: Column) -> str:
    return ".".join(column.names)
