"""Filters from the words that people type into a search box, and several filters as one."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import partial

from index.errors import InputError
from index.filter_sql import OWN_COLUMNS, Column, Sql, compose, glob_any_case, join, match_glob
from index.filters import Filter

MAX_CHARACTERS = 500
MAX_WORDS = 16
_IN_METADATA = (
    "EXISTS (SELECT 1 FROM json_tree(images.metadata) AS leaf "
    "WHERE leaf.type IN ('text', 'integer', 'real') AND {})"
)
_IN_SOURCE = "images.source IN (SELECT id FROM sources WHERE {})"
_LEAF, _LOCATION = Column(Sql("leaf.atom")), Column(Sql("location"), "bytes")


def find_words(text: str) -> Filter:
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
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError("the text holds half of a surrogate pair, which is no text; leave it out") from error
    if "\0" in text:
        raise InputError("the text holds a NUL character; leave it out")
    sql = join([_find_word(word) for word in words], word="AND")
    return Filter(" ".join(words), sql.text, sql.values, columns=())


def combine(filters: Sequence[Filter]) -> Filter:
    """The filter that keeps what all of these keep, of which there is at least one."""
    if len(filters) == 1:
        return filters[0]
    sql = compose(" AND ".join("({})" for _ in filters), *(Sql(one.sql, one.values) for one in filters))
    text = " AND ".join(f"({one.text})" for one in filters)
    columns = dict.fromkeys(names for one in filters for names in one.columns)
    return Filter(text, sql.text, sql.values, tuple(columns))


def _find_word(word: str) -> Sql:
    forms = dict.fromkeys((word, *(unicodedata.normalize(form, word) for form in ("NFC", "NFD"))))
    return join([part for form in forms for part in _find_form(form)], word="OR")


def _find_form(word: str) -> list[Sql]:
    glob = f"*{''.join(map(glob_any_case, word))}*"
    match = partial(match_glob, glob=glob, places=len(word))
    return [
        match(OWN_COLUMNS["path"]),
        match(OWN_COLUMNS["label"]),
        compose(_IN_SOURCE, match(_LOCATION)),
        compose(_IN_METADATA, match(_LEAF)),
    ]
