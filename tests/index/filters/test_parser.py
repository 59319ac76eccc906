import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog.reader import Catalog
from index.errors import InputError
from index.filters.condition import And, Column, Compare, Condition, Constant, IsNull, Not
from index.filters.parser import (
    MAX_CHARACTERS,
    MAX_CONDITIONS,
    MAX_NAMES,
    MAX_NESTING,
    MAX_PATTERN_CHARACTERS,
    parse_filter,
    write_condition,
)
from index.filters.to_sql import write_sql
from tests.conftest import mostly_slow, tries
from tests.index.filters.compilers import Flat, make_rows, written_conditions
from tests.index.filters.on_row import fill_catalog


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_filter(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_text_is_read_into_a_tree_that_is_a_key() -> None:
    where = parse_filter("  shop='a\n b'\n\tAND x.y   IS NOT NULL and price betWeen 1 AND 2 ")
    price = Column(("price",))
    between = And((Compare(price, ">=", Constant("number", "1")), Compare(price, "<=", Constant("number", "2"))))
    assert where == And(
        (Compare(Column(("shop",)), "=", Constant("text", "a\n b")), Not(IsNull(Column(("x", "y")))), between)
    )
    assert hash(where) == hash(parse_filter(write_condition(where)))


@pytest.mark.deep
@settings(max_examples=tries(100, deep=400))
@given(written_conditions)
def test_what_is_written_of_a_tree_is_read_as_that_tree(condition: Condition) -> None:
    assert parse_filter(write_condition(condition)) == condition


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1, max_size=3))
def test_any_name_can_be_written(names: list[str]) -> None:
    condition = IsNull(Column(tuple(names)))
    assert parse_filter(write_condition(condition)) == condition


def test_truths_and_paths_compare_with_their_like_only() -> None:
    assert "neither above nor below" in refusal("x < TRUE")
    assert "neither above nor below" in refusal("x BETWEEN 1 AND true")
    assert refusal("path = 5").endswith("the path is a text; write '5'")
    assert "the source is a text" in refusal("source IN ('a', TRUE)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", "the filter is empty"),
        (
            "shop = amazon",
            "at character 8, amazon: expected a number, a date, 'text', TRUE or FALSE; found amazon; "
            "text goes in quotes: 'amazon'",
        ),
        ("price < 20 AND", "at its end: expected the name of a column; found nothing more"),
        ("day > 2024-01-1", "at character 7, 2024-01-1: .* a date like 2024-05-31; other text goes in quotes"),
        ("'shop' = 'x'", "at character 1, 'shop' = 'x': .* in double quotes"),
        ("in = 3", 'as a name it goes in double quotes: "in"'),
        ("(x = 1", r"at its end: expected AND, OR or \)"),
        ("x = 1)", "expected AND, OR or the end; found [)]"),
        ("x IN 5", r"expected \(, as in IN \(1, 2\); found 5"),
        ("x LIKE 5", "expected a text in quotes, in which % is any characters and _ is one; found 5"),
        ("x 5", "expected a comparison: =, !=, .* found 5"),
        ("x = 'y", "at character 5, 'y: the quote is never closed; within a text write ''"),
        ("x = 1; DROP TABLE images", "at character 6, ; DROP TABLE images: expected a name"),
        ("x = 'a\0'", "a NUL character"),
        ("x = '\ud800'", "half of a surrogate pair"),
        ("x = \x1b", r"at character 5, \\x1b: expected"),
        (" OR ".join(["x = 1"] * (MAX_CONDITIONS + 1)), f"at most {MAX_CONDITIONS} comparisons"),
        ("(" * (MAX_NESTING + 1) + "x = 1", f"at most {MAX_NESTING} "),
        ("NOT " * (MAX_NESTING + 1) + "x = 1", f"at most {MAX_NESTING} "),
        ("x = '" + "y" * MAX_CHARACTERS + "'", "the filter has 10,006 characters; at most 10,000"),
        ("x LIKE '" + "y" * (MAX_PATTERN_CHARACTERS + 1) + "'", "more than 100 characters"),
        (".".join("x" * (MAX_NAMES + 1)) + " = 1", f"at most {MAX_NAMES} names"),
    ],
)
def test_a_text_that_is_no_filter_is_refused_where_it_goes_wrong(text: str, message: str) -> None:
    assert re.search(message, refusal(text))


CONDITIONS = (
    *("x < 1", "x = '1'", "x = TRUE", "x IN (1, 'a', '2', TRUE)", "x NOT BETWEEN 1 AND '5'", "x NOT LIKE 'É%'"),
    *("x.\"é\".y < '1'", "label = 1", "source NOT LIKE 'a'", "path IN ('a', 'b')", "x IS NOT NULL"),
    "x.\"é\".y NOT IN (1, 'a', '2', TRUE)",
)


@pytest.fixture(scope="module")
def nested() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill_catalog(connection, make_rows([{"x": {"é": {"y": 1}}, "own path": "1"}]))
        yield connection


@pytest.mark.parametrize("condition", mostly_slow(CONDITIONS, fast=CONDITIONS[3:6] + CONDITIONS[-1:]))
def test_sqlite_takes_the_largest_filters_that_are_allowed(nested: sqlite3.Connection, condition: str) -> None:
    def keep(text: str) -> list[int]:
        sql = write_sql(parse_filter(text))
        return [number for (number,) in nested.execute(f"SELECT id FROM images WHERE {sql.text}", sql.values)]

    for opening in ("(", "NOT ", "x = 1 AND (x = 1 OR (", "x = 1 OR NOT (", "x < 1 AND NOT ("):
        depth = MAX_NESTING // (opening.count("(") + opening.count("NOT"))
        text = opening * depth + condition + ")" * (opening.count("(") * depth)
        assert keep(text) is not None
    for word in (" AND ", " OR "):
        room = MAX_CHARACTERS // len(condition + word)
        many = word.join([condition] * min(MAX_CONDITIONS, room))
        assert keep(many) is not None
        deep = word.join([condition] * 100)
        assert keep("(x = 1 OR " * (MAX_NESTING - 1) + f"({deep})" + ")" * (MAX_NESTING - 1)) is not None
    most = ",".join(map(str, range(2000)))
    assert keep(f"id IN ({most})") == [1]
    listed = ",".join(f"'{number}'" for number in range(1200))
    assert keep(f"id IN ({listed}) OR path IN ('1')") == [1]


WORDS = """
x price label path source id metadata . ( ) , = < != IN NOT LIKE AND OR IS NULL BETWEEN TRUE 1 -2.5
'a' '%' "q""t" '' " ' -- ; ? ?1 {} {0} %s \\ /*
"""
PIECES = (*WORDS.split(), " ", "DROP TABLE images", "UNION SELECT")


@pytest.fixture(scope="module")
def untouched() -> Iterator[sqlite3.Connection]:
    """A catalogue of which every row and table is still there at the end."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill_catalog(connection, make_rows([{"x": 1, "price": "2", 'q"t': "a"}, {"own label": "cat"}]))
        before, changes = list(connection.iterdump()), connection.total_changes
        yield connection
        assert (list(connection.iterdump()), connection.total_changes) == (before, changes)


@pytest.mark.deep
@settings(max_examples=tries(100, deep=400))
@given(st.text() | st.lists(st.sampled_from(PIECES)).map(" ".join) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_filter_that_only_reads_or_an_input_error(untouched: sqlite3.Connection, text: str) -> None:
    catalog = Catalog(untouched)
    try:
        found = catalog.matching_ids(parse_filter(text))
    except InputError:
        return
    assert set(found.tolist()) <= {1, 2}


def keep(rows: Sequence[Flat], text: str) -> list[int]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog, where = fill_catalog(connection, make_rows(rows)), parse_filter(text)
        found = catalog.matching_ids(where).tolist()
        assert [row.id for row in catalog.rows(where=where)] == found
        return [number - 1 for number in found]


def test_a_misspelt_column_is_named_with_those_that_there_are() -> None:
    rows: list[Flat] = [{"price": 1, "shop": 2, "exif": {"iso": 1, "focal length": 3}}, {"title": "a", "label": "b"}]
    for text, message in (
        ("shop = 1 OR pirce < 20", "metadata pirce; there are exif, .*, price, .*; did you mean price\\?$"),
        ("exif.izo = 1", 'metadata exif.izo; there are exif."focal length", exif.iso; did you mean exif.iso\\?$'),
        ("sharpnes < 3", "metadata sharpnes; there are exif, .*, sharpness, .*; did you mean sharpness\\?$"),
        ("exfi.iso IS NULL", "metadata exfi; there are exif, .*; did you mean exif\\?$"),
        ("price.amount = 1", "metadata price.amount; price has no fields$"),
        ('"\x1b" = 1', r'metadata "\\x1b"; there are '),
    ):
        with pytest.raises(InputError, match=f"^no item of the gallery has the {message}"):
            keep(rows, text)
    with pytest.raises(InputError) as caught:
        keep(rows, "x = 1")
    said = str(caught.value).partition("; there are ")[2].split(", ")
    assert said == ["exif", "id", "label", "metadata.label", "path", "price", "shop", "source", "tag", "title"]
    with pytest.raises(InputError, match=r"; there are column0, column1, .* and 43 more; did you mean column0\?$"):
        keep([{f"column{number}": 1 for number in range(50)}], "column = 1")


def test_metadata_of_rows_that_are_not_indexed_is_no_misspelt_column() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog = fill_catalog(connection, make_rows([{"x": 1}, {"y": 1}, {"y": 1}]))
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


def test_a_misspelt_label_is_named_with_those_that_there_are() -> None:
    rows: list[Flat] = [{"own label": "shoes"}, {"own label": "hat"}, {"own label": "042"}, {}]
    for text, message in (
        ("label = 'shoess'", r"label shoess; there are 042, hat, shoes; did you mean shoes\?$"),
        ("id > 2 OR NOT (label IN ('hat', 'Shoe'))", r"label Shoe; there are 042, .*; did you mean shoes\?$"),
        ("label = 43", "label 43; there are 042, "),
        ("label = 'SHOE'", r"label SHOE; there are 042, .*; did you mean shoes\?$"),
        ("label = '\x1b'", r"label \\x1b; there are "),
    ):
        with pytest.raises(InputError, match=f"^no item of the gallery has the {message}"):
            keep(rows, text)
    assert keep(rows, "label = 42 OR label = 'hat'") == [1, 2]
    assert keep(rows, "label LIKE 'x%' OR label > 'x' OR label IS NULL") == [3]
    with pytest.raises(InputError, match=r"^no item of the gallery has the label cat; there are no labels$"):
        keep([{}], "label = 'cat'")
