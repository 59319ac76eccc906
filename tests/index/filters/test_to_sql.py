import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog.reader import TABLES
from index.errors import InputError
from index.filters.condition import Column, Condition, HasWord, Or, equals
from index.filters.parser import MAX_WORDS, find_words
from index.filters.to_sql import write_sql
from tests.deep import tries
from tests.index.filters.catalogs import fill_catalog
from tests.index.filters.compilers import any_conditions, check_compiler, some_rows
from tests.index.filters.on_row import Row, fulfils


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def say(connection: sqlite3.Connection, condition: Condition) -> list[bool | None]:
    """What SQLite says of every row: true, false or unknown."""
    sql = write_sql(condition)
    rows = connection.execute(f"SELECT {sql.text} FROM images ORDER BY id", sql.values).fetchall()
    return [None if said is None else bool(said) for (said,) in rows]


def test_sqlite_keeps_what_every_compiler_must(connection: sqlite3.Connection) -> None:
    def keep(condition: Condition, rows: Sequence[Row]) -> list[int]:
        fill_catalog(connection, rows)
        sql = write_sql(condition)
        found = connection.execute(f"SELECT id FROM images WHERE {sql.text} ORDER BY id", sql.values)
        return [number - 1 for (number,) in found]

    check_compiler(keep)


@pytest.mark.deep
@settings(max_examples=tries(100, deep=400))
@given(some_rows, any_conditions)
def test_sqlite_agrees_on_every_row(connection: sqlite3.Connection, rows: list[Row], condition: Condition) -> None:
    fill_catalog(connection, rows)
    assert say(connection, condition) == [fulfils(condition, row) for row in rows]


@given(any_conditions, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_nothing_of_what_was_written_is_in_the_sql(condition: Condition, text: str) -> None:
    def write(text: str) -> Condition:
        column = Column((text,))
        return Or((equals(column, text), equals(Column(("x", text)), text), HasWord("é"), condition))

    sql, other = write_sql(write(f"é{text}")), write_sql(write("é"))
    assert sql.text == other.text
    assert sql.text.count("?") == len(sql.values) == len(other.values)


@given(st.text(min_size=1, max_size=20))
@settings(deadline=None)
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    try:
        connection.execute(
            "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
            "VALUES (1, ?, 1, 1, 'indexed', NULL, ?)",
            (b"x", json.dumps({"note": text})),
        )
        sql = write_sql(find_words(text))
        assert connection.execute(f"SELECT id FROM images WHERE {sql.text}", sql.values).fetchall() == [(1,)]
    except InputError:
        assert not text.split() or "\0" in text or len(text.split()) > MAX_WORDS
    finally:
        connection.close()


@pytest.mark.parametrize(
    "text", ["", "  \n", "a" * 101, "a " * 251, "a b c d e f g h i j k l m n o p q", "a\0", "\ud800"]
)
def test_what_cannot_be_looked_for_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="text"):
        find_words(text)
