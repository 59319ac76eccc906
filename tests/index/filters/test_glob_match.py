"""Long texts and patterns: what SQLite's GLOB says, in a time that is bounded."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from index.filters.glob_match import TimeOverError, find_glob, match_glob
from tests.deep import tries

LETTERS = "aAbBsSſkK\u212aäÄßẞİiıI%_*?[]^-.é\u0301\n"


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


@pytest.mark.deep
@settings(max_examples=tries(150, deep=600))
@given(
    st.text(LETTERS, max_size=12) | st.text(max_size=6),
    st.lists(st.sampled_from(LETTERS) | st.characters(codec="utf-8") | st.sampled_from(["*", "?"]), max_size=8),
)
@example("aXb", ["*", "a", "?", "*", "b", "*"])
def test_a_text_matches_as_in_sqlite(connection: sqlite3.Connection, text: str, written: list[str]) -> None:
    glob = "".join(one if one in "*?" else find_glob(one)[1:-1] for one in written if one != "\0")
    for pattern in (glob, f"*{glob}*", f"{glob}*", f"*{glob}"):
        [expected] = connection.execute("SELECT ? GLOB ?", (text, pattern)).fetchone()
        assert match_glob(text, pattern) == bool(expected), (text, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["a", "ä"])
@pytest.mark.parametrize("written", ["{0}" * 900 + "b", "{0}?" * 450 + "b", "{0}*" * 450 + "b", "?" * 900 + "b"])
def test_a_text_of_a_million_characters_is_matched_in_seconds(written: str, letter: str) -> None:
    glob = "".join(one if one in "*?" else find_glob(one)[1:-1] for one in written.format(letter))
    text, begun = letter * 1_000_000, time.process_time()
    assert not match_glob(text, f"*{glob}*")
    assert match_glob(text + "b", f"*{glob}*")
    assert time.process_time() - begun < 30  # GLOB of SQLite takes minutes


def test_a_match_ends_when_its_time_is_over() -> None:
    text, begun = "ä" * 10_000_000, time.monotonic()
    with pytest.raises(TimeOverError):
        match_glob(text, "*[äÄ]?b*", until=begun + 0.2)
    assert time.monotonic() - begun < 5
