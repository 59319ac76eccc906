import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog.reader import TABLES, create_tables, read_catalog
from index.errors import InputError
from index.filters.condition import Column, Compare, Condition, Constant, HasWord, Or
from index.filters.parser import MAX_WORDS, find_words, parse_filter
from index.filters.to_sql import write_sql
from tests.conftest import mostly_slow, tries
from tests.index.filters.compilers import CASES, any_conditions, some_rows
from tests.index.filters.on_row import Row, fill_catalog, fulfils


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def test_sqlite_keeps_the_rows_of_every_example(connection: sqlite3.Connection) -> None:
    for condition, rows, kept in CASES:
        fill_catalog(connection, rows)
        sql = write_sql(condition)
        found = connection.execute(f"SELECT id FROM images WHERE {sql.text} ORDER BY id", sql.values)
        assert [number - 1 for (number,) in found] == kept, condition


@pytest.mark.deep
@settings(max_examples=tries(100, deep=400))
@given(some_rows, any_conditions)
def test_sqlite_agrees_on_every_row(connection: sqlite3.Connection, rows: list[Row], condition: Condition) -> None:
    fill_catalog(connection, rows)
    sql = write_sql(condition)
    said = connection.execute(f"SELECT {sql.text} FROM images ORDER BY id", sql.values).fetchall()
    assert [None if one is None else bool(one) for (one,) in said] == [fulfils(condition, row) for row in rows]


@given(any_conditions, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_nothing_of_what_was_written_is_in_the_sql(condition: Condition, text: str) -> None:
    def write(text: str) -> Condition:
        compared = (Compare(Column(names), "=", Constant("text", text)) for names in ((text,), ("x", text)))
        return Or((*compared, HasWord("é"), condition))

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


CAPTION_CHARACTERS = 100_000
LIMIT_S = 0.5
MUCH_LATER_S = 15  # than the limit, on however slow a machine


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue of 60 rows with captions of 100,000 letters, and names of metadata as long."""
    path = tmp_path_factory.mktemp("captions") / "catalog.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        create_tables(connection)
        connection.execute("INSERT INTO sources (kind, location) VALUES ('folder', ?)", (b"/" + b"a" * 4000,))
        for number in range(60):
            letter = "aä"[number % 2]
            values = {"caption": letter * CAPTION_CHARACTERS, f"{letter * 2000}{number}": [1], "list": [[[]]] * 10_000}
            connection.execute(
                "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
                "VALUES (1, ?, 1, 1, 'indexed', ?, ?)",
                (b"%d/" % number + b"a" * 4000, "a" * CAPTION_CHARACTERS, json.dumps(values)),
            )
    return path


def join(part: str, times: int) -> Condition:
    return parse_filter(" OR ".join([part] * times))


FILTERS = {
    "equal letters": join(f"caption LIKE '%{'a' * 95}b%'", 10),
    "single wildcards": join(f"caption LIKE '%{'a_' * 48}b%'", 10),
    "many wildcards": join(f"caption LIKE '%{'a%' * 48}b%'", 10),
    "letters of no ASCII": join(f"caption LIKE '%{'ä' * 95}b%'", 10),
    "many patterns": join("label LIKE '%a_a_b%'", 190),
    "paths": join(f"path LIKE '%{'a_' * 48}b%'", 10),
    "sources": join(f"source LIKE '%{'a_' * 48}b%'", 10),
    "words": find_words(" ".join("aä"[number % 2] * 25 + str(number) for number in range(16))),
    "one word": find_words("a" * 99 + "b"),
    "numbers": join("caption < 5e300", 200),
    "truths": join("caption = TRUE", 200),
    "nested names": parse_filter(" OR ".join(f'"ö{number}".x.y.z IS NOT NULL OR list = 1' for number in range(100))),
    "a long misspelt name": parse_filter('"' + "a" * 9000 + '" = 1'),
    "labels": join("label = 'ab'", 200),
    "many values": parse_filter(f"caption IN ({','.join(map(str, range(1500)))})"),
}


@pytest.mark.parametrize("name", mostly_slow(FILTERS, fast=("many wildcards", "words", "nested names", "numbers")))
def test_a_filter_ends_soon_after_its_limit(captions: Path, name: str) -> None:
    begun, message = time.monotonic(), ""
    try:
        with read_catalog(captions, limit_s=LIMIT_S) as catalog:
            catalog.matching_ids(FILTERS[name])
    except InputError as error:
        message = str(error)
    assert not message or "takes more than 0.5 seconds" in message or "no item of the gallery has" in message
    assert time.monotonic() - begun < LIMIT_S + MUCH_LATER_S


def test_a_statement_that_is_begun_after_the_limit_ends_too(captions: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    def run_late() -> None:
        with read_catalog(captions, limit_s=0.1) as catalog:
            time.sleep(0.3)
            catalog.connection.execute(endless)

    with pytest.raises(InputError, match=r"more than 0\.1 seconds"):
        run_late()


@pytest.mark.slow
def test_the_beginning_of_long_texts_is_matched(captions: Path) -> None:
    with read_catalog(captions) as catalog:
        for text, count in (
            (f"caption LIKE '%{'A' * 95}%'", 30),
            (f"caption LIKE '{'Ä' * 95}%'", 30),
            (f"NOT caption LIKE '%{'a' * 95}b%'", 60),
            (f"label LIKE '%{'_' * 95}a'", 60),
            ("caption LIKE 'a'", 0),
        ):
            assert len(catalog.matching_ids(parse_filter(text))) == count, text
