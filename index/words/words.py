"""Words of a text, and the text of an image: its path, label, tags and metadata."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from index.errors import InputError

if TYPE_CHECKING:
    from index.catalog.rows import CatalogRow

MAX_QUERY = 1000  # characters
MAX_WORDS = 16  # of a query
_MAX_TEXT = 10_000  # characters of an image's text
_LONGEST = 64  # characters of a word
_ELSEWHERE = re.compile(r"/|\\|[A-Za-z]:[/\\]|[a-z0-9]+://|data:")  # paths of machines, and addresses
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")
_NO_WORDS = ("cluster", "split", "path", "sha256")  # names of metadata
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LIKE_A_FILE = re.compile(r"[/\\*?\[\0]|\.[A-Za-z0-9]{2,7}$")
# Scripts that are written without spaces: Thai, kana and Chinese characters.
_UNSPACED = re.compile(r"([\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+)")
_MINUS = "-\u2212\u2013"
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f]")  # of European scripts, Hebrew, Arabic


def split_words(text: str) -> list[str]:
    """Words of a text in order: folded case, without accents; pairs of characters where a script has no spaces."""
    text = _CAMEL_CASE.sub(" ", text)
    if text.isascii():
        return [word[:_LONGEST] for word in _ASCII_WORD.findall(text.lower())]
    marked = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    text = unicodedata.normalize("NFC", _ACCENTS.sub("", marked))
    # Marks are vowels in many scripts.
    kept = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text)
    found: list[str] = []
    for word in "".join(kept).split():
        for place, part in enumerate(_UNSPACED.split(word)):
            if place % 2 and len(part) > 1:
                found += [part[start : start + 2] for start in range(len(part) - 1)]
            elif part:
                found.append(part[:_LONGEST])
    return found


def is_text(query: str) -> bool:
    """Whether a query is words: no file or folder, nor like the name of a file, a pattern or an address."""
    return bool(query.strip()) and not (os.path.lexists(query) or _LIKE_A_FILE.search(query))


def split_query(text: str) -> tuple[list[str], list[str], str]:
    """The words that a query wants, those with a minus before them, each once, and its text without the latter.

    Raises:
        InputError: it wants no word, has more than `MAX_WORDS`, or is too long.
    """
    if len(text) > MAX_QUERY:
        raise InputError(f"a search by words may have {MAX_QUERY:,} characters, got {len(text):,}")
    wanted, unwanted, kept = dict[str, None](), dict[str, None](), list[str]()
    for part in text.split():
        is_unwanted = part[0] in _MINUS and len(part) > 1
        (unwanted if is_unwanted else wanted).update(dict.fromkeys(split_words(part)))
        kept += [] if is_unwanted else [part]
    if not wanted:
        raise InputError(f"a search by words needs letters or digits of a word that is wanted, got {text!r}")
    if len(wanted) + len(unwanted) > MAX_WORDS:
        raise InputError(f"a search by words may have {MAX_WORDS} words, got {len(wanted) + len(unwanted)}")
    return list(wanted), list(unwanted), " ".join(kept)


def text_of(row: CatalogRow) -> str:
    """The text that names an image: path below its source without the file's ending, label, tags, metadata.

    A folder that is called like a label that people changed does not count, nor do numbers, times, addresses, absolute
    paths and the columns cluster, split, path and sha256.
    """
    path = os.path.basename(row.path) if _ELSEWHERE.match(row.path) else row.path
    folders = [part for part in os.path.splitext(path)[0].split("/") if part != row.former_label]
    parts = [*folders, row.label if isinstance(row.label, str) else "", *row.tags]
    for name, value in row.metadata.items():
        if name not in _NO_WORDS:
            parts += islice(_list_texts(value), 100)
    return " ".join(parts)[:_MAX_TEXT]


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not _ELSEWHERE.match(value) and not _TIME.fullmatch(value):
            yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)


def list_grams(word: str) -> set[str]:
    """The 2-, 3- and 4-grams of a word with its ends marked."""
    marked = f"^{word}$"
    return {marked[start : start + size] for size in (2, 3, 4) for start in range(len(marked) - size + 1)}
