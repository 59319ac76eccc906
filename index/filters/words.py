"""Filters from the words that people type into a search box."""

from __future__ import annotations

from index.errors import InputError
from index.filters.condition import Condition, HasWord, join

MAX_CHARACTERS = 500
MAX_WORDS = 16
MAX_WORD_CHARACTERS = 100


def find_words(text: str) -> Condition:
    """The filter that keeps what has every word somewhere: in its path, label, source, or a value of its metadata.

    Words lie between spaces, may be parts of words, and match in whatever case. No character of them means anything
    but itself. A letter with an accent matches however it is encoded. A word takes 0.1 s among 200,000 images, and
    0.5 s where each has metadata of 130 characters (one core of a small machine).

    Raises:
        InputError: there is no word, or more than the limits allow.
    """
    words = list(dict.fromkeys(text.split()))
    if not words:
        raise InputError("the text is empty; write a word that is in a path, label or other text of the images")
    if len(text) > MAX_CHARACTERS or len(words) > MAX_WORDS:
        seen = f"{len(words):,} words in {len(text):,} characters"
        raise InputError(f"the text has {seen}; at most {MAX_WORDS} words in {MAX_CHARACTERS} are looked for")
    if max(map(len, words)) > MAX_WORD_CHARACTERS:
        raise InputError(f"a word of the text has more than {MAX_WORD_CHARACTERS} characters")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError("the text holds half of a surrogate pair, which is no text; leave it out") from error
    if "\0" in text:
        raise InputError("the text holds a NUL character; leave it out")
    return join([HasWord(word) for word in words])
