"""Words of a search box as filters."""

from __future__ import annotations

import json
import sqlite3
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog_schema import MIGRATIONS
from index.errors import InputError
from index.filters import parse_filter
from index.glob_match import allow_long_texts
from index.word_filter import MAX_WORDS, combine, find_words

ROWS: list[tuple[int, bytes, str | None, dict[str, object] | None]] = [
    (1, b"Shirts/Blue_one.jpg", "shirt", {"brand": "M\u00fcller", "price": 19.9, "new": True}),
    (1, b"pants/100%.jpg", "pants", {"tags": ["summer", "Blue jeans"], "nested": {"deep": "c:\\x"}}),
    (2, b"caf\xe9/[a].jpg", None, None),
    (2, "A\u0308rmel/x.jpg".encode(), "\u00c4rmel", {"brand": 'blue\'s "best"'}),
    (2, b"blueXone.jpg", "o'brien", {}),
]


@pytest.fixture(scope="module")
def catalog() -> Iterator[sqlite3.Connection]:
    """Five rows of two sources."""
    connection = sqlite3.connect(":memory:")
    allow_long_texts(connection)
    connection.executescript(MIGRATIONS[0])
    connection.executemany(
        "INSERT INTO sources (kind, location) VALUES ('folder', ?)", [(b"/data/First",), (b"/data/second",)]
    )
    connection.executemany(
        "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
        "VALUES (?, ?, 1, 1, 'indexed', ?, ?)",
        [(s, p, label, None if m is None else json.dumps(m, sort_keys=True)) for s, p, label, m in ROWS],
    )
    yield connection
    connection.close()


def keep(catalog: sqlite3.Connection, text: str) -> list[int]:
    where = find_words(text)
    query = f"SELECT id FROM images WHERE {where.sql} ORDER BY id"
    return [row[0] for row in catalog.execute(query, where.values)]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("blue", [1, 2, 4, 5]),
        ("BLUE shirt", [1]),
        ("  blue\tjeans ", [2]),
        ("first", [1, 2]),
        ("second o'brien", [5]),
        ("m\u00fcller", [1]),
        ("M\u00dcLLER", [1]),
        ("19.9", [1]),
        ("summer", [2]),
        ("c:\\x", [2]),
        ('"best"', [4]),
        ("nothing", []),
        ("brand", []),  # a name of metadata is no value of it
        ("true", []),
    ],
)
def test_every_word_is_in_path_label_source_or_a_value_of_the_metadata(
    catalog: sqlite3.Connection, text: str, ids: list[int]
) -> None:
    assert keep(catalog, text) == ids


def test_no_character_of_a_word_means_anything_else(catalog: sqlite3.Connection) -> None:
    assert keep(catalog, "blue_one") == [1]
    assert keep(catalog, "0%") == [2]
    assert keep(catalog, "%") == [2]
    assert keep(catalog, "[a]") == [3]
    assert keep(catalog, "*") == keep(catalog, "?") == keep(catalog, "blue' OR 1=1 --") == []


def test_accents_match_however_they_are_encoded(catalog: sqlite3.Connection) -> None:
    for form in ("NFC", "NFD"):
        assert keep(catalog, unicodedata.normalize(form, "\u00e4rmel/")) == [4]
        assert keep(catalog, unicodedata.normalize(form, "\u00c4RMEL")) == [4]
    assert keep(catalog, "caf\udce9") == [3]


@given(st.text(min_size=1, max_size=20))
@settings(deadline=None)
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    allow_long_texts(connection)
    connection.executescript(MIGRATIONS[0])
    try:
        connection.execute(
            "INSERT INTO images (source, path, size_bytes, mtime_ns, status, label, metadata) "
            "VALUES (1, ?, 1, 1, 'indexed', NULL, ?)",
            (b"x", json.dumps({"note": text})),
        )
        where = find_words(text)
        assert connection.execute(f"SELECT id FROM images WHERE {where.sql}", where.values).fetchall() == [(1,)]
    except InputError:
        assert not text.split() or "\0" in text or len(text.split()) > MAX_WORDS
    finally:
        connection.close()


@pytest.mark.parametrize("text", ["", "  \n", "a" * 501, "a b c d e f g h i j k l m n o p q", "a\0", "\ud800"])
def test_what_cannot_be_looked_for_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="text"):
        find_words(text)


def test_filters_are_combined_whatever_is_in_them(catalog: sqlite3.Connection) -> None:
    parts = [parse_filter("label = 'shirt' OR price > 5"), find_words("blue"), parse_filter("id < 5 OR id > 0")]
    both = combine(parts)
    rows = catalog.execute(f"SELECT id FROM images WHERE {both.sql}", both.values).fetchall()
    assert rows == [(1,)]
    assert both.columns == (("price",),)
    assert combine(parts[:1]) is parts[0]
