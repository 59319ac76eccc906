"""Compiler of conditions to SQL; user text is always bound to a `?`. The rules are in `index.filters.parser`."""

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from index.filters import condition as tree
from index.text import valid_text

Value: TypeAlias = str | bytes
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Texts that SQLite takes for numbers."""
_PLAIN = re.compile(r"[\w -]+", re.ASCII)  # names that every SQLite finds in a JSON path
MATCHED_CHARACTERS = 10_000
"""Length of text, from its start, that is matched by a pattern or word."""
_IS_NUMBER = "{} <= CAST(9e999 AS NUMERIC)"  # SQLite orders every text after infinity
_LOCATION = "(SELECT location FROM sources WHERE sources.id = images.source)"
_IN_SOURCE = "images.source IN (SELECT id FROM sources WHERE {})"
_IN_METADATA = (
    "EXISTS (SELECT 1 FROM json_tree(images.metadata) AS leaf WHERE leaf.type IN ('text', 'integer', 'real') AND {})"
)


@dataclass(frozen=True, slots=True)
class Sql:
    """A SQL expression with the values of its `?`."""

    text: str
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column in SQL, NULL where a row lacks it; `holds` is as of `Column`."""

    sql: Sql
    holds: Literal["any", "text", "bytes"] = "any"


def write_sql(condition: tree.Condition) -> Sql:
    """An expression true for rows of `images` that match; comparing the tag needs a table `tags`, of `tag` and `id`."""
    match condition:
        case tree.Compare(tree.TAG, "!=", constant):
            return compose("NOT ({})", write_sql(tree.Compare(tree.TAG, "=", constant)))
        case tree.Compare(column, sign, constant):
            return _of_tags(column, _compare(_operand(column), sign, constant))
        case tree.Among(column, constants):
            return _of_tags(column, _match_any(_operand(column), constants))
        case tree.Like(column, pattern):
            wild = {"%": "*", "_": "?"}
            glob = "".join(wild.get(character) or _any_case(character) for character in pattern)
            return _of_tags(column, _match_glob(_operand(column), glob))
        case tree.IsNull(tree.TAG):
            return Sql("images.id NOT IN (SELECT id FROM tags)")
        case tree.IsNull(column):
            return compose("{} IS NULL", _operand(column).sql)
        case tree.HasWord(word, folders):
            forms = dict.fromkeys((word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))))
            return join([part for form in forms for part in _find_form(form, folders=folders)], word="OR")
        case tree.Not(part):
            return compose("NOT ({})", write_sql(part))
        case tree.And(parts):
            return join(list(map(write_sql, parts)), word="AND")
        case tree.Or(parts):
            return join(list(map(write_sql, parts)), word="OR")


def _of_tags(column: tree.Column, found: Sql) -> Sql:
    """A comparison; with the tag, one of the image's tags fulfils it."""
    return compose("images.id IN (SELECT id FROM tags WHERE {})", found) if column == tree.TAG else found


def _operand(column: tree.Column) -> _Operand:
    if not column.is_own:
        return _Operand(reach(column.names))
    name = column.names[0]
    places = {"source": _LOCATION, "tag": "tags.tag", **tree.DERIVED}
    return _Operand(Sql(places.get(name, f"images.{name}")), column.holds)


def write_operand(column: tree.Column) -> Sql:
    """A column's value, NULL where a row lacks it; not of the tag, of which a row has any number."""
    return _operand(column).sql


def compose(template: str, *parts: Sql) -> Sql:
    """Fill each `{}` of the template with a part."""
    return Sql(template.format(*(part.text for part in parts)), sum((part.values for part in parts), ()))


def bind(*values: Value) -> Sql:
    return Sql(", ".join("?" for _ in values), values)


def join(parts: Sequence[Sql], *, word: str) -> Sql:
    """Join the parts with AND or OR, in parentheses where there are several."""
    return parts[0] if len(parts) == 1 else compose(f"({f' {word} '.join('{}' for _ in parts)})", *parts)


def reach(names: Sequence[str], *, what: Literal["value", "type"] = "value") -> Sql:
    """Value or JSON type of a row's metadata, nested by names; NULL without it."""
    if all(map(_PLAIN.fullmatch, names)):  # the fast way
        path = "$" + "".join(f'."{name}"' for name in names)
        function = "json_extract" if what == "value" else "json_type"
        return compose(f"{function}(images.metadata, {{}})", bind(path))
    tables, last = expand(len(names)), len(names) - 1
    wanted = " AND ".join(f"k{number}.key = ?" for number in range(len(names)))
    return Sql(f"(SELECT k{last}.{what} FROM {tables} WHERE {wanted})", tuple(names))


def expand(depth: int) -> str:
    """Tables `k0`, `k1`, … of the nested levels of a row's metadata."""
    inner = (
        f"json_each(CASE k{number}.type WHEN 'object' THEN k{number}.value END) AS k{number + 1}"
        for number in range(depth - 1)
    )
    return ", ".join(["json_each(images.metadata) AS k0", *inner])


def _compare(column: _Operand, sign: str, constant: tree.Constant) -> Sql:
    x, is_order = column.sql, sign not in ("=", "!=")
    if constant.kind == "truth":
        truth = "CASE lower({}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE {} END"
        return compose(f"({truth} {sign} {{}})", x, x, _number(constant))
    if constant.kind == "number":
        compared = compose(f"{{}} {sign} {{}}", x, _number(constant))
        return compose(f"(CASE WHEN {_IS_NUMBER} THEN {{}} END)", x, compared) if is_order else compared
    plain = "+" if column.holds == "any" else ""  # the plus removes an affinity that converts texts
    compared = compose(f"{plain}{{}} {sign} {{}}", x, bind(_stored(constant, column)))
    if column.holds != "any" or not (is_order or _is_number(constant)):
        return compared
    other = compose(f" ELSE {{}} {sign} {{}}", x, _number(constant)) if _is_number(constant) else Sql("")
    return compose("(CASE typeof({}) WHEN 'text' THEN {}{} END)", x, compared, other)


def _match_any(column: _Operand, constants: Sequence[tree.Constant]) -> Sql:
    texts = [constant for constant in constants if constant.kind == "text"]
    numbers = [constant for constant in constants if constant.kind == "number"]
    parts = [_compare(column, "=", constant) for constant in constants if constant.kind == "truth"]
    if texts:
        plain = "+" if column.holds == "any" else ""
        listed = compose(f"{plain}{{}} IN ({{}})", column.sql, bind(*(_stored(text, column) for text in texts)))
        numeric = [text for text in texts if _is_number(text)] if column.holds == "any" else []
        if numeric:
            either = "(CASE typeof({}) WHEN 'text' THEN {} ELSE {} END)"
            listed = compose(either, column.sql, listed, _is_among(column, numeric))
        parts.append(listed)
    if numbers:
        parts.append(_is_among(column, numbers))
    return join(parts, word="OR")


def _match_glob(column: _Operand, glob: str) -> Sql:
    """Match the column's text by GLOB; only its beginning, as SQLite checks the time limit only between rows."""
    x = compose("CAST({} AS TEXT)", column.sql) if column.holds == "bytes" else column.sql
    template = f"substr({{}}, 1, {MATCHED_CHARACTERS}) GLOB CAST({{}} AS TEXT)"
    return compose(template, x, bind(_stored(tree.Constant("text", glob), column)))


def _any_case(character: str) -> str:
    """A GLOB pattern of both cases of a letter: LIKE ignores case of ASCII only."""
    cases = {character, character.lower(), character.upper()}
    variants = sorted(case for case in cases if len(case) == 1)
    return f"[{''.join(variants)}]" if len(variants) > 1 or character in "*?[" else character


def _find_form(word: str, *, folders: bool) -> list[Sql]:
    def match(operand: _Operand) -> Sql:
        return _match_glob(operand, f"*{''.join(map(_any_case, word))}*")

    path, label, leaf = map(match, (_operand(tree.PATH), _operand(tree.LABEL), _Operand(Sql("leaf.atom"))))
    if not folders:
        path = compose("(CAST(images.path AS TEXT) NOT GLOB '/*' AND {})", path)
        return [path, label, compose(_IN_METADATA, compose("leaf.key IS NOT 'path' AND {}", leaf))]
    source = match(_Operand(Sql("location"), "bytes"))
    return [path, label, compose(_IN_SOURCE, source), compose(_IN_METADATA, leaf)]


def _number(constant: tree.Constant) -> Sql:
    """The number with numeric affinity, to compare with texts that are numbers; bound as text, so parsed like these."""
    return compose("CAST({} AS NUMERIC)", bind(constant.text))


def _is_among(column: _Operand, constants: Iterable[tree.Constant]) -> Sql:
    listed = bind(json.dumps([constant.text for constant in constants]))
    return compose("{} IN (SELECT CAST(value AS NUMERIC) FROM json_each({}))", column.sql, listed)


def _is_number(constant: tree.Constant) -> bool:
    return NUMBER.fullmatch(constant.text) is not None


def _stored(constant: tree.Constant, column: _Operand) -> Value:
    """A text as in the catalogue: undecodable bytes are escaped, but raw in paths."""
    return os.fsencode(constant.text) if column.holds == "bytes" else valid_text(constant.text)
