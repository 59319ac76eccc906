from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import InputError
from index.words.words import is_text, split_query, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RedShoe_07-Größe.jpg", ["red", "shoe", "07", "grosse", "jpg"]),
        ("Ｃafé  crème", ["cafe", "creme"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("が か", ["が", "か"]),
        ("한국어 שָׁלוֹם", ["한국어", "שלום"]),
        ("हिन्दी किताब", ["हिन्दी", "किताब"]),
        ("😀 -- ___", []),
    ],
)
def test_texts_are_split_into_words_without_case_and_accents(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@given(st.text())
def test_words_of_words_are_the_same(text: str) -> None:
    words = split_words(text)
    assert all(split_words(word) == [word] for word in words if len(word) < 3)
    assert split_words(" ".join(words).upper() if text.isascii() else " ".join(words)) == words


def test_a_query_has_wanted_and_unwanted_words() -> None:
    assert split_query("apple red-cheeked -juice −Pulp apple") == (
        ["apple", "red", "cheeked"],
        ["juice", "pulp"],
        "apple red-cheeked apple",
    )
    for text in ("", "-juice", "\0\x1b", "😀"):
        with pytest.raises(InputError, match="letters or digits"):
            split_query(text)
    with pytest.raises(InputError, match=r"1,000 characters, got 10,000"):
        split_query("a" * 10_000)


def test_files_and_what_is_named_like_one_are_no_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("milk").mkdir()
    for query in ("milk", "oat.jpg", "photos/oat", "*.png", "https://a.b/c", "", "a\0b"):
        assert not is_text(query), query
    for query in ("oat milk", "9.5", "a" * 10_000, "NEAR(x) OR y", "what!"):
        assert is_text(query), query
