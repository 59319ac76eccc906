from __future__ import annotations

import json
import operator
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog import Catalog
from index.catalog_schema import migrate
from index.errors import InputError
from index.filters import (
    MAX_CHARACTERS,
    MAX_CONDITIONS,
    MAX_NAMES,
    MAX_NESTING,
    MAX_PATTERN_CHARACTERS,
    Filter,
    parse_filter,
    write_column,
)

Rows = Sequence[Mapping[str, object]]


def make_catalog(connection: sqlite3.Connection, rows: Rows) -> Catalog:
    """Indexed rows with the ids 1, 2, …; `path`, `label` and `source` apart, the items are metadata."""
    migrate(connection)
    connection.execute("INSERT INTO sources (kind, location) VALUES ('folder', ?), ('folder', ?)", (b"/a", b"/b"))
    for number, row in enumerate(rows, start=1):
        own = {name: row.get(f"own {name}") for name in ("path", "label", "source")}
        metadata = {name: value for name, value in row.items() if not name.startswith("own ")}
        connection.execute(
            "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
            "VALUES (?, ?, 1, 1, 'indexed', ?, ?)",
            (own["source"] or 1, os.fsencode(str(own["path"] or number)), own["label"],
             json.dumps(metadata, sort_keys=True) if metadata else None),
        )  # fmt: skip
    return Catalog(connection)


def keep(rows: Rows, text: str) -> list[int]:
    """Positions of the rows that a filter keeps."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog = make_catalog(connection, rows)
        where = parse_filter(text)
        found = catalog.matching_ids(where)
        assert found.dtype == np.int64
        assert [row.id for row in catalog.rows(where=where)] == found.tolist()
        return [number - 1 for number in found.tolist()]


def keep_values(values: Sequence[object], text: str) -> list[object]:
    """Of the values of the metadata `x`, those that a filter keeps; None stands for a row without."""
    found = keep([{} if value is None else {"x": value} for value in [*values, "there is an x"]], text)
    return [values[number] for number in found if number < len(values)]


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_filter(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_parts_of_a_filter_are_those_of_sql() -> None:
    rows = [
        {"shop": "x", "price": 5, "own label": "hat"},
        {"shop": "x", "price": 30, "own label": "shoe"},
        {"shop": "it's", "price": 5},
        {"price": -1.5},
    ]
    for text, kept in (
        ("shop = 'x' and price < 20", [0]),
        ("shop == 'x' Or price = -1.5", [0, 1, 3]),
        ("shop = 'it''s'", [2]),
        ('shop = "it\'s"', [2]),
        ("price IN (5, -15e-1)", [0, 2, 3]),
        ("price not in (5)", [1, 3]),
        ("label like '%A_'", [0]),
        ("label NOT LIKE 'h%'", [1]),
        ("price between 5 and 30 and not (label = 'hat')", [1]),
        ("price NOT BETWEEN +0 AND 10", [1, 3]),
        ("label IS NULL", [2, 3]),
        ("shop is not null and label is null", [2]),
        ("NOT shop IS NULL AND (label <> 'hat' OR label IS NULL)", [1, 2]),
        ("id >= 2 and id != 3", [1, 3]),
        ("price=5 or price=30 and label='none'", [0, 2]),
        ("(price=5 or price=30)and label='shoe'", [1]),
        (' \n"price" <=5. ', [0, 2, 3]),
    ):
        assert keep(rows, text) == kept, text


def test_a_number_compares_with_numbers_and_with_texts_that_are_numbers() -> None:
    values = [19.9, "19.90", " 7 ", "1e1", 42, "n/a", "", "12 EUR", None, "0x10", [5], "5,5"]
    assert keep_values(values, "x < 20") == [19.9, "19.90", " 7 ", "1e1"]
    assert keep_values(values, "x > 0") == [19.9, "19.90", " 7 ", "1e1", 42]
    assert keep_values(values, "x = 19.9") == [19.9, "19.90"]
    assert keep_values(values, "x != 19.9") == [v for v in values if v not in (19.9, "19.90", None)]
    assert keep_values(values, "NOT x < 20") == keep_values(values, "x >= 20") == [42]
    assert keep_values(values, "x IN (10, 42)") == ["1e1", 42]
    assert keep_values([2**53 + 1, 2**53, str(2**53 + 1)], f"x = {2**53 + 1}") == [2**53 + 1, str(2**53 + 1)]
    assert keep_values([1e300], "x < 1e999") == [1e300]


def test_a_text_compares_with_texts_and_where_it_is_a_number_with_numbers() -> None:
    values = [42, "42", "042", 42.0, 7, "7", "seven", None]
    assert keep_values(values, "x = '42'") == [42, "42", 42.0]
    assert keep_values(values, "x IN ('42', 'seven')") == [42, "42", 42.0, "seven"]
    assert keep_values(values, "x NOT IN ('42', '7')") == ["042", "seven"]
    assert keep_values(values, "x > '5'") == [42, 42.0, 7, "7", "seven"]  # "42" is before "5" as a text
    assert keep_values(values, "x > 'm'") == ["seven"]
    assert keep_values(values, "x != 'm'") == values[:-1]
    assert keep_values(["2024-05-31", "2023-12-01", 2024], "x >= '2024-01-01'") == ["2024-05-31"]


def test_what_is_missing_fulfils_nothing_but_is_null() -> None:
    rows = [{"x": 1}, {"x": None, "y": 1}, {"y": 1}, {}]
    for text in ("x != 5", "x NOT IN (5)", "NOT x = 5", "NOT (x = 5 OR x > 3)", "x IS NOT NULL", "x NOT LIKE 'a'"):
        assert keep(rows, text) == [0], text
    assert keep(rows, "x IS NULL") == keep(rows, "NOT x IS NOT NULL") == [1, 2, 3]
    assert keep(rows, "x != 5 OR y = 1") == [0, 1, 2]


def test_true_and_false_are_1_and_0_and_their_names() -> None:
    values = [True, "True", 1, "1", False, "FALSE", 0, "yes", None]
    assert keep_values(values, "x = TRUE") == keep_values(values, "x IN (true)") == values[:4]
    assert keep_values(values, "x = false") == [False, "FALSE", 0]
    assert keep_values(values, "x != true") == [False, "FALSE", 0, "yes"]
    assert "neither above nor below" in refusal("x < TRUE")
    assert "neither above nor below" in refusal("x BETWEEN 1 AND true")


def test_like_ignores_the_case_of_all_letters_and_knows_only_two_wildcards() -> None:
    values = ["ÉTÉ 10%", "été 10*", "a[b]?", "a\nb", 425, [1, "b"]]
    assert keep_values(values, "x LIKE 'été%'") == values[:2]
    assert keep_values(values, "x LIKE '%*'") == ["été 10*"]
    assert keep_values(values, "x LIKE 'A[B]?'") == ["a[b]?"]
    assert keep_values(values, "x LIKE '_\n_'") == ["a\nb"]
    assert keep_values(values, "x LIKE '4_5'") == [425]
    assert keep_values(values, "x LIKE '%\"B\"%'") == [[1, "b"]]


def test_names_in_double_quotes_and_dots_reach_any_metadata() -> None:
    rows: Rows = [
        {"on sale": 1, "a.b": 2, 'say "hi"': 3, "名前": 4, "in": 5, "label": 6, "\\": 7, "": 8, "x-y": 9},
        {"exif": {"iso": 100, "f.n": {'"': "é"}}, "own label": "cat", "metadata": {"exif": 1}},
        {"exif": "iso", "a": {"b": 2}},
    ]
    for text, kept in (
        ('"on sale" = 1', [0]),
        ('"a.b" = 2', [0]),
        ("a.b = 2", [2]),
        ('"say ""hi""" = 3', [0]),
        ("名前 = 4", [0]),
        ('"in" = 5', [0]),
        ("metadata.label = 6", [0]),
        ("label = 'cat'", [1]),
        ('"label" = "cat"', [1]),
        ('"\\" = 7 AND "" = 8 AND x-y=9', [0]),
        ("exif.iso >= 100", [1]),
        ('exif."f.n"."""" = \'é\'', [1]),
        ("metadata.exif = 'iso'", [2]),
        ("metadata.metadata.exif = 1", [1]),
        ('"metadata".exif = 1', [1]),
        ("exif.iso IS NULL", [0, 2]),
    ):
        assert keep(rows, text) == kept, text


def test_paths_and_sources_are_the_bytes_of_files_and_labels_as_the_catalogue_has_them() -> None:
    odd = os.fsdecode(b"caf\xe9")
    rows = [{"own path": f"{odd}/1.jpg", "own label": "caf\\xe9"}, {"own path": "CAFÉ/2.jpg", "own source": 2}]
    for text, kept in (
        (f"path = '{odd}/1.jpg'", [0]),
        (f"path LIKE '{odd}/%'", [0]),
        ("path LIKE 'café/_.JPG'", [1]),
        (f"path IN ('x', '{odd}/1.jpg', 'CAFÉ/2.jpg')", [0, 1]),
        ("path < 'a'", [1]),
        (f"label = '{odd}'", [0]),
        ("source = '/b'", [1]),
        ("source LIKE '%A'", [0]),
    ):
        assert keep(rows, text) == kept, text
    assert refusal("path = 5").endswith("the path is a text; write '5'")
    assert "the source is a text" in refusal("source IN ('a', TRUE)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter is empty"),
        (" \n", "the filter is empty"),
        ("shop = amazon", "at character 8, amazon: expected a number, 'text', TRUE or FALSE; found amazon; "
                          "text goes in quotes: 'amazon'"),
        ("price < 20 AND", "at its end: expected the name of a column; found nothing more"),
        ("x = NULL", "found NULL; say IS NULL or IS NOT NULL"),
        ("day > 2024-01-01", "at character 7, 2024-01-01: .* dates and other text go in quotes"),
        ("price < 20EUR", "at character 9, 20EUR: expected a number like 20"),
        ("'shop' = 'x'", "at character 1, 'shop' = 'x': .* in double quotes"),
        ("in = 3", 'as a name it goes in double quotes: "in"'),
        ("(x = 1", r"at its end: expected AND, OR or \)"),
        ("x = 1)", "expected AND, OR or the end; found [)]"),
        ("x IN ()", "expected a number, 'text', TRUE or FALSE; found [)]"),
        ("x IN 5", r"expected \(, as in IN \(1, 2\); found 5"),
        ("x LIKE 5", "expected a text in quotes, in which % is any characters and _ is one; found 5"),
        ("x IS 5", "expected NULL or NOT NULL; found 5"),
        ("x NOT = 5", "expected IN, LIKE or BETWEEN; found ="),
        ("x BETWEEN 1, 2", "expected AND and the greater value"),
        ("x 5", "expected a comparison: =, !=, .* found 5"),
        ("x = 'y", "at character 5, 'y: the quote is never closed; within a text write ''"),
        ("x = 1; DROP TABLE images", "at character 6, ; DROP TABLE images: expected a name"),
        ("x = 'a\0'", "a NUL character"),
        ("x = '\ud800'", "half of a surrogate pair"),
        ("x.5 = 1", "expected a comparison"),
        ("x = \x1b", r"at character 5, \\x1b: expected"),
        (" OR ".join(["x = 1"] * (MAX_CONDITIONS + 1)), f"at most {MAX_CONDITIONS} comparisons"),
        ("(" * (MAX_NESTING + 1) + "x = 1", f"at most {MAX_NESTING} "),
        ("NOT " * (MAX_NESTING + 1) + "x = 1", f"at most {MAX_NESTING} "),
        ("x = '" + "y" * MAX_CHARACTERS + "'", "the filter has 10,006 characters; at most 10,000"),
        ("x LIKE '" + "y" * (MAX_PATTERN_CHARACTERS + 1) + "'", "more than 1,000 characters"),
        (".".join("x" * (MAX_NAMES + 1)) + " = 1", f"at most {MAX_NAMES} names"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_filter_is_refused_where_it_goes_wrong(text: str, message: str) -> None:
    assert re.search(message, refusal(text))


CONDITIONS = (
    "x < 1", "x = '1'", "x = TRUE", "x IN (1, 'a', '2', TRUE)", "x NOT BETWEEN 1 AND '5'", "x NOT LIKE 'É%'",
    'x."é".y < \'1\'', "label = 1", "source NOT LIKE 'a'", "path IN ('a', 'b')", "x IS NOT NULL",
    'x."é".y NOT IN (1, \'a\', \'2\', TRUE)',
)  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_sqlite_takes_the_largest_filters_that_are_allowed(condition: str) -> None:
    rows: Rows = [{"x": {"é": {"y": 1}}}]
    for opening in ("(", "NOT ", "x = 1 AND (x = 1 OR (", "x = 1 OR NOT (", "x < 1 AND NOT ("):
        depth = MAX_NESTING // (opening.count("(") + opening.count("NOT"))
        text = opening * depth + condition + ")" * (opening.count("(") * depth)
        assert keep(rows, text) is not None
    for word in (" AND ", " OR "):
        room = MAX_CHARACTERS // len(condition + word)
        many = word.join([condition] * min(MAX_CONDITIONS, room))
        assert keep(rows, many) is not None
        deep = word.join([condition] * 100)
        assert keep(rows, "(x = 1 OR " * (MAX_NESTING - 1) + f"({deep})" + ")" * (MAX_NESTING - 1)) is not None
    most = ",".join(map(str, range(2000)))
    assert keep(rows, f"id IN ({most})") == [0]
    listed = ",".join(f"'{number}'" for number in range(1200))
    assert keep(rows, f"id IN ({listed}) OR path IN ('1')") == [0]


def test_a_filter_is_a_key_and_its_text_has_single_spaces() -> None:
    assert {field.name for field in fields(Filter)} == {"text", "sql", "values", "columns"}
    where = parse_filter("  shop='a\n b'\n\tAND x.y   IS NULL and shop>1 ")
    assert where.text == "shop='a\n b' AND x.y IS NULL and shop>1"
    assert where.columns == (("shop",), ("x", "y"))
    assert hash(where) == hash(parse_filter(where.text))
    assert where == parse_filter(where.text)


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=3))
def test_any_name_can_be_written(names: list[str]) -> None:
    assert parse_filter(f"{write_column(tuple(names))} IS NULL").columns == (tuple(names),)


# --- every expression, against its plain meaning in Python


class Node:
    """A part of a filter that knows its text, and what it says of a row: true, false or unknown."""

    text: str

    def holds(self, row: Mapping[str, object]) -> bool | None:
        raise NotImplementedError


@dataclass
class Const:
    kind: str
    value: object
    text: str


SIGNS: dict[str, Callable[[object, object], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\v\f\r]*")


def as_number(value: object) -> float | None:
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) else None


def as_stored(value: object) -> object:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else value


def says(value: object, sign: str, const: Const) -> bool | None:
    compare, is_order = SIGNS[sign], "<" in sign.replace("<>", "") or ">" in sign.replace("<>", "")
    if value is None:
        return None
    if const.kind == "truth" and isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if const.kind == "text" and isinstance(value, str):
        return compare(value, const.value)
    known, given_number = as_number(value), as_number(const.value)
    if known is None or given_number is None:
        return None if is_order else compare(0, 1)
    return compare(known, given_number)


@dataclass
class Condition(Node):
    names: tuple[str, ...]
    text: str
    says: Callable[[object], bool | None]

    def holds(self, row: Mapping[str, object]) -> bool | None:
        value: object = row
        for name in self.names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return self.says(as_stored(value))


@dataclass
class Joined(Node):
    word: str
    parts: list[Node]

    @property
    def text(self) -> str:  # type: ignore[override]
        return f" {self.word} ".join(
            f"({part.text})" if isinstance(part, Joined) else part.text for part in self.parts
        )

    def holds(self, row: Mapping[str, object]) -> bool | None:
        said = {part.holds(row) for part in self.parts}
        decisive = self.word == "OR"
        return decisive if decisive in said else None if None in said else not decisive


@dataclass
class Negated(Node):
    part: Node

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"NOT ({self.part.text})" if isinstance(self.part, Joined) else f"not {self.part.text}"

    def holds(self, row: Mapping[str, object]) -> bool | None:
        said = self.part.holds(row)
        return None if said is None else not said


KEYS = ("price", "in", "x-y", "a b", "ä.b", 'q"t', "名前", "", "\\", "é\u0301😀", "label", "metadata", "a.b")
WORDS = ("n/a", "abc", "ABC", "été", "Été 5", "TRUE", "false", "it's", '"', "%_", "a*[b]?", "", " ", "10", "😀é")
NUMBERS = ("0", "1", "-1", "+7", "10", "19.90", "19.9", ".5", "5.", "1e1", "-2.25E0", "042", "9007199254740992")
values = st.none() | st.booleans() | st.sampled_from([0, 1, -1, 7, 10, 42, 19.9, 0.5, -2.25, 2**53]) | st.sampled_from(
    [*WORDS, *NUMBERS, " 7 ", "7\n", "1e", "0x10", "\u00a05"]
) | st.lists(st.sampled_from([1, "a", "été"]), max_size=2)  # fmt: skip
columns = st.sampled_from([(key,) for key in KEYS] + [("nest", key) for key in KEYS] + [("nest", "ä.b", "deep")])
rows_of_values = st.lists(
    st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
    | st.fixed_dictionaries(
        {"nest": values | st.dictionaries(st.sampled_from(KEYS), values | st.just({"deep": 7}), max_size=6)}
    ),
    max_size=6,
)
COMPLETE = dict.fromkeys(KEYS, 1) | {"nest": {key: {"deep": 1} for key in KEYS}}


def quote(text: str, mark: str = "'") -> str:
    return mark + text.replace(mark, mark * 2) + mark


texts = st.builds(
    lambda text, mark: Const("text", text, quote(text, mark)),
    st.sampled_from(WORDS + NUMBERS),
    st.sampled_from("'\""),
)
numbers = st.sampled_from(NUMBERS).map(lambda text: Const("number", text, text))
truths = st.sampled_from(["TRUE", "False"]).map(lambda text: Const("truth", int(text == "TRUE"), text))


@st.composite
def conditions(draw: st.DrawFn) -> Node:
    names = draw(columns)
    column, no = write_column(names), draw(st.sampled_from(["", "NOT ", "not "]))
    kind = draw(st.sampled_from(["sign", "truth", "in", "like", "between", "null"]))
    if kind in ("sign", "truth"):
        sign = draw(st.sampled_from([*SIGNS] if kind == "sign" else ["=", "==", "!=", "<>"]))
        const = draw(texts | numbers if kind == "sign" else truths)
        return Condition(names, f"{column}{sign}{const.text}", lambda value: says(value, sign, const))
    if kind == "null":
        return Condition(names, f"{column} is {no}null", lambda value: (value is None) != bool(no))
    if kind == "in":
        consts = draw(st.lists(texts | numbers | truths, min_size=1, max_size=4))
        listed = f"{column} {no}IN ({', '.join(const.text for const in consts)})"
        plain = Joined("OR", [Condition(names, "", lambda v, c=const: says(v, "=", c)) for const in consts])
    elif kind == "between":
        low, high = draw(texts | numbers), draw(texts | numbers)
        listed = f"{column} {no}between {low.text} And {high.text}"
        bounds = ((">=", low), ("<=", high))
        plain = Joined("AND", [Condition(names, "", lambda v, s=s, c=c: says(v, s, c)) for s, c in bounds])
    else:
        pattern = draw(st.text("abÉé5.%_*[]?", max_size=4))
        listed = f"{column} {no}LIKE {quote(pattern)}"
        parts = ({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern)
        regex = re.compile("".join(parts), re.DOTALL | re.IGNORECASE)

        def matches(value: object) -> bool | None:
            text = str(int(value)) if isinstance(value, bool) else str(value)
            return None if value is None else regex.fullmatch(text) is not None

        plain = Joined("OR", [Condition(names, "", matches)])
    return Meaning(listed, Negated(plain) if no else plain)


@dataclass
class Meaning(Node):
    text: str
    plain: Node

    def holds(self, row: Mapping[str, object]) -> bool | None:
        return self.plain.holds(row)


expressions = st.recursive(
    conditions(),
    lambda inner: (
        st.builds(Negated, inner)
        | st.builds(Joined, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4))
    ),
    max_leaves=8,
)


@settings(max_examples=400)
@given(rows_of_values, expressions)
def test_sqlite_keeps_the_rows_of_which_an_expression_is_true(rows: list[dict[str, object]], node: Node) -> None:
    every = [COMPLETE, *rows]
    assert keep(every, node.text) == [number for number, row in enumerate(every) if node.holds(row) is True]


# --- what a filter cannot do

PIECES = (
    "x", "price", "label", "path", "source", "id", "metadata", ".", " ", "(", ")", ",", "=", "<", "!=", "IN", "NOT",
    "LIKE", "AND", "OR", "IS", "NULL", "BETWEEN", "TRUE", "1", "-2.5", "'a'", "'%'", '"q""t"', "''", '"', "'", "--",
    ";", "DROP TABLE images", "UNION SELECT", "?", "?1", "{}", "{0}", "%s", "\\", "/*",
)  # fmt: skip


@pytest.fixture(scope="module")
def untouched() -> Iterator[sqlite3.Connection]:
    """A catalogue of which every row and table is still there at the end."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        make_catalog(connection, [{"x": 1, "price": "2", 'q"t': "a"}, {"own label": "cat"}])
        before, changes = list(connection.iterdump()), connection.total_changes
        yield connection
        assert (list(connection.iterdump()), connection.total_changes) == (before, changes)


@settings(max_examples=400)
@given(
    st.text() | st.lists(st.sampled_from(PIECES)).map(" ".join) | st.lists(st.sampled_from(PIECES)).map("".join)
)
def test_any_text_is_a_filter_that_only_reads_or_an_input_error(untouched: sqlite3.Connection, text: str) -> None:
    catalog = Catalog(untouched)
    try:
        found = catalog.matching_ids(parse_filter(text))
    except InputError:
        return
    assert set(found.tolist()) <= {1, 2}


@given(expressions, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_nothing_of_what_was_written_is_in_the_sql(node: Node, text: str) -> None:
    def write(text: str) -> str:
        name, value = quote(text, '"'), quote(text)
        return f"{name} = {value} OR x.{name} IN ({value}, {value}) OR path LIKE {value} OR {node.text}"

    where, other = parse_filter(write(f"é{text}")), parse_filter(write("é"))
    assert where.sql == other.sql
    assert where.sql.count("?") == len(where.values) == len(other.values)


# --- misspelt columns


def test_a_misspelt_column_is_named_with_those_that_there_are_the_closest_first() -> None:
    rows: Rows = [{"price": 1, "shop": 2, "exif": {"iso": 1, "focal length": 3}}, {"title": "a", "label": "b"}]
    for text, message in (
        ("shop = 1 OR pirce < 20", "metadata pirce; there are price, "),
        ("Label = 'cat'", "metadata Label; there are label, "),
        ("exif.izo = 1", 'metadata exif.izo; there are exif.iso, exif."focal length"; did you mean exif.iso\\?$'),
        ("exfi.iso IS NULL", "metadata exfi; there are exif, "),
        ("price.amount = 1", "metadata price.amount; there is none within price$"),
        ('"\x1b" = 1', r'metadata "\\x1b"; there are '),
    ):
        with pytest.raises(InputError, match=f"^no item of the gallery has the {message}"):
            keep(rows, text)
    with pytest.raises(InputError) as caught:
        keep(rows, "x = 1")
    said = str(caught.value).partition("; there are ")[2].split(", ")
    assert sorted(said) == ["exif", "id", "label", "metadata.label", "path", "price", "shop", "source", "title"]
    with pytest.raises(InputError, match=r"metadata x; there are id, label, path, source$"):
        keep([{}, {}], "x IS NULL")
    with pytest.raises(InputError, match=r", [^,]* and 42 more; did you mean column0\?$"):
        keep([{f"column{number}": 1 for number in range(50)}], "column = 1")


def test_metadata_of_rows_that_are_not_indexed_is_no_misspelt_column() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog = make_catalog(connection, [{"x": 1}, {"y": 1}, {"y": 1}])
        connection.execute("UPDATE images SET status = 'skipped' WHERE id = 2")
        where = parse_filter("y = 1")
        assert catalog.matching_ids(where).tolist() == [3]
        assert catalog.matching_ids(where, status="skipped").tolist() == [2]
        assert catalog.matching_ids(where, status=None).tolist() == [2, 3]
        assert [row.id for row in catalog.rows(where=where, status="skipped")] == [2]
        assert [row.id for row in catalog.rows(where=where, after=2, limit=1)] == [3]
        assert [row.id for row in catalog.rows(where=where, limit=1)] == [2]
        connection.execute("DELETE FROM images WHERE id = 3")
        assert catalog.matching_ids(where).tolist() == []
