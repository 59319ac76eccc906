"""The text of a condition as a user would write it, which `index.filters.parser` reads again."""

from __future__ import annotations

from index.filters import condition as tree
from index.filters.parser import write_name


def write_condition(condition: tree.Condition) -> str:
    """The text of a condition that looks for no words, which texts of the language cannot name.

    >>> write_condition(tree.Not(tree.Like(tree.Column(("on sale",)), "it's %")))
    'NOT "on sale" LIKE \\'it\\'\\'s %\\''
    """
    match condition:
        case tree.Compare(column, sign, constant):
            return f"{write_column(column)} {sign} {_write_constant(constant)}"
        case tree.Among(column, constants):
            return f"{write_column(column)} IN ({', '.join(map(_write_constant, constants))})"
        case tree.Like(column, pattern):
            return f"{write_column(column)} LIKE {_quote(pattern)}"
        case tree.IsNull(column):
            return f"{write_column(column)} IS NULL"
        case tree.Not(part):
            return f"NOT {_write_part(part)}"
        case tree.And(parts):
            return " AND ".join(map(_write_part, parts))
        case tree.Or(parts):
            return " OR ".join(map(_write_part, parts))
        case tree.HasWord(word):
            raise ValueError(f"no text of a filter looks for the word {word!r} everywhere")


def write_column(column: tree.Column) -> str:
    """A column as a filter names it."""
    own = len(column.names) == 1 and column.names[0] in tree.OWN_COLUMNS
    is_ambiguous = own if len(column.names) == 1 else column.names[0] == "metadata"
    names = ("metadata", *column.names) if is_ambiguous and not column.is_own else column.names
    return ".".join(map(write_name, names))


def _write_part(part: tree.Condition) -> str:
    return f"({write_condition(part)})" if isinstance(part, tree.And | tree.Or) else write_condition(part)


def _write_constant(constant: tree.Constant) -> str:
    if constant.kind == "truth":
        return "TRUE" if constant.text == "1" else "FALSE"
    return constant.text if constant.kind == "number" else _quote(constant.text)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
