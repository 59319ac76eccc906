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
_MAX_TEXT = 10_000  # characters of an image's text
_LONGEST = 64  # characters of a word
_ELSEWHERE = ("/", "\\", "http://", "https://", "s3://", "gs://", "az://", "data:")
_NO_WORDS = ("cluster", "split", "path", "sha256")  # names of metadata
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")
_LIKE_A_FILE = re.compile(r"[/\\*?\[\0]|\.[A-Za-z0-9]{2,7}$")
# Scripts that are written without spaces: Thai, kana and Chinese characters.
_UNSPACED = re.compile(r"([\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+)")
_MINUS = "-\u2212\u2013"
_VOICED = "\u3099\u309a"  # marks that make other kana


def split_words(text: str) -> list[str]:
    """Words of a text in order: folded case, without accents; pairs of characters where a script has no spaces."""
    text = _CAMEL_CASE.sub(" ", text)
    if text.isascii():
        return [word[:_LONGEST] for word in _WORD.findall(text.lower())]
    folded = unicodedata.normalize("NFKC", text).casefold()
    marked = unicodedata.normalize("NFD", folded)
    plain = "".join(c for c in marked if unicodedata.category(c) != "Mn" or c in _VOICED)
    found: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFC", plain)):
        for place, part in enumerate(_UNSPACED.split(word)):
            if place % 2 and len(part) > 1:
                found += [part[start : start + 2] for start in range(len(part) - 1)]
            elif part:
                found.append(part[:_LONGEST])
    return found


def is_text(query: str) -> bool:
    """Whether a query is words: no file or folder, nor like the name of a file, a pattern or an address."""
    return bool(query.strip()) and not (os.path.lexists(query) or _LIKE_A_FILE.search(query))


def split_query(text: str) -> tuple[list[str], list[str]]:
    """The words that a query wants, and those with a minus before them, each once; an InputError without the former."""
    if len(text) > MAX_QUERY:
        raise InputError(f"a search by words may have {MAX_QUERY:,} characters, got {len(text):,}")
    wanted, unwanted = dict[str, None](), dict[str, None]()
    for part in text.split():
        (unwanted if part[0] in _MINUS and len(part) > 1 else wanted).update(dict.fromkeys(split_words(part)))
    if not wanted:
        raise InputError(f"a search by words needs letters or digits, got {text!r}")
    return list(wanted), list(unwanted)


def text_wanted(text: str) -> str:
    """A query without the words that have a minus before them."""
    return " ".join(part for part in text.split() if not (part[0] in _MINUS and len(part) > 1))


def text_of(row: CatalogRow) -> str:
    """The text that names an image: path below its source without the file's ending, label, tags, metadata.

    Numbers, addresses, absolute paths and the columns cluster, split, path and sha256 are left out.
    """
    parts = [os.path.splitext(row.path)[0], row.label or "", *row.tags]
    for name, value in row.metadata.items():
        if name not in _NO_WORDS:
            parts += islice(_list_texts(value), 100)
    return " ".join(parts)[:_MAX_TEXT]


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith(_ELSEWHERE):
            yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)


def list_grams(word: str) -> set[str]:
    """The 2-, 3- and 4-grams of a word with its ends marked."""
    marked = f"^{word}$"
    return {marked[start : start + size] for size in (2, 3, 4) for start in range(len(marked) - size + 1)}
