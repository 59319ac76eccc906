"""Words of a search box as filters; what they find is in `compilers`."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog.schema import TABLES
from index.errors import InputError
from index.filters.glob_match import allow_long_texts
from index.filters.to_sql import write_sql
from index.filters.words import MAX_WORDS, find_words


@given(st.text(min_size=1, max_size=20))
@settings(deadline=None)
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    connection = sqlite3.connect(":memory:")
    allow_long_texts(connection)
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


@pytest.mark.parametrize("text", ["", "  \n", "a" * 501, "a b c d e f g h i j k l m n o p q", "a\0", "\ud800"])
def test_what_cannot_be_looked_for_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="text"):
        find_words(text)
