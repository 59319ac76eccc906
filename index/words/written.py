"""Full-text index of the images' texts: an FTS5 table in the catalogue, and one in memory for what people changed.

`index.words.words` is the tokenizer: a text is given to SQLite as its words with spaces between.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path

import numpy as np

from index.arrays import Doubles, Ids
from index.catalog.decided_rows import DecidedRows
from index.catalog.reader import Catalog
from index.catalog.rows import COLUMNS, CatalogRow, make_row
from index.words.words import list_grams, split_words, text_of

TABLE = "words"
_CREATE = (  # without positions and texts: 45 to 70 bytes an image
    f"CREATE VIRTUAL TABLE {TABLE} USING fts5(text, content='', detail=none, prefix='2 3', "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* N* Co M*'\")"
)
_MOST_SIMILAR = 5  # words that stand for an unknown one
_LEAST_OVERLAP = 0.4  # Dice coefficient of the n-grams of similar words
_SWAPPED = 0.6  # of words in which two neighbouring letters changed places, at least
_MORE_FREQUENT = 10  # times as many images has a word that a rare or misspelt one is taken for
_RARE = 3  # images; words of fewer may be misread or misspelt
_PREFIX_FROM = 2  # characters of the beginning of a word


def write_words(path: Path) -> None:
    """Create the table in a finished catalogue, with the texts of its indexed rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(_CREATE)
        rows = connection.execute(f"SELECT {COLUMNS} FROM main.images WHERE status = 'indexed' ORDER BY id")
        _fill(connection, map(make_row, rows))


def _fill(connection: sqlite3.Connection, rows: Iterable[CatalogRow]) -> None:
    connection.execute("BEGIN")
    texts = ((row.id, " ".join(split_words(text_of(row)))) for row in rows)
    connection.executemany(f"INSERT INTO {TABLE} (rowid, text) VALUES (?, ?)", texts)
    connection.execute("COMMIT")


class WrittenWords:
    """The words of a gallery's texts, with the labels and tags that people gave; safe among threads.

    Args:
        open_catalog: opens the catalogue, without decisions, for a thread.
        decided: the decisions, by which texts differ from the catalogue's.
        shown: (N,) ascending ids of the images that may be found.
    """

    def __init__(
        self, open_catalog: Callable[[], AbstractContextManager[Catalog]], *, decided: DecidedRows, shown: Ids
    ) -> None:
        self._open, self._shown, self._lock = open_catalog, shown, threading.Lock()
        self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._memory.execute(_CREATE)
        with open_catalog() as catalog:
            query = "SELECT 1 FROM main.sqlite_master WHERE name = ?"
            self._is_kept = catalog.connection.execute(query, (TABLE,)).fetchone() is not None
            changed = (
                {*decided.by_id, *decided.marked.tags, *decided.marked.splits} if self._is_kept else shown.tolist()
            )
            self._changed: Ids = np.array(sorted(changed), dtype=np.int64)
            rows = [row for row in catalog.rows_of(self._changed.tolist()) if row.status == "indexed"]
        self._former = Counter[str]()  # images by word, of the changed rows in the catalogue
        if self._is_kept:
            self._former.update(word for row in rows for word in set(split_words(text_of(row))))
        _fill(self._memory, (one for one in map(decided.apply, rows) if one.status == "indexed"))

    def find(self, terms: Iterable[Iterable[str]]) -> Ids:
        """(n,) int64 ids of the images that have one term of each of some words, best first (BM25).

        A term is a word, or the beginning of one with a * behind it. A word without terms finds nothing.
        """
        parts = [" OR ".join(map(_quote, some)) for some in terms]
        if not all(parts):
            return self._shown[:0]
        query = " AND ".join(f"({part})" for part in parts)
        return self._ask(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ? ORDER BY rank, rowid", query)

    def find_some(self, terms: Iterable[str]) -> Ids:
        """(n,) ids of the images that have one of some terms, in no order."""
        return self._ask(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ?", " OR ".join(map(_quote, terms)))

    def understand(self, word: str) -> dict[str, float]:
        """Terms of the texts that a query's word stands for, with their similarity in 0..1; empty for an unknown one.

        The word itself; else all words that begin with it; else those of about the same n-grams. Words of fewer than
        `_RARE` images, which text recognition misreads in great number, give way to much more frequent similar ones.
        """
        count = self.counts.get(word, 0)
        if count >= _RARE or word.isdecimal():
            return {word: 1.0}
        if len(word) >= _PREFIX_FROM:
            start = bisect_left(self._sorted, word)
            longer = list(takewhile(lambda other: other.startswith(word), self._sorted[start : start + _MORE_FREQUENT]))
            if len(longer) > (count > 0) and sum(self.counts[other] for other in longer) >= _RARE:
                return {word + "*": 1.0}
        similar = self.similar(word, least=_LEAST_OVERLAP, images=_MORE_FREQUENT * count)
        if not similar:
            return {word: 1.0} if count else {}
        most = max(self.counts[other] for other in similar)
        frequent = {other: dice for other, dice in similar.items() if _MORE_FREQUENT * self.counts[other] >= most}
        return {other: dice for other, dice in frequent.items() if dice >= 0.9 * max(frequent.values())}

    def similar(self, word: str, *, least: float, images: int = 0) -> dict[str, float]:
        """Words of so many images with the most n-grams in common, and the Dice coefficient, descending.

        It is `_SWAPPED` at least for words in which two neighbouring letters changed places.
        """
        grams, shared = list_grams(word), np.zeros(len(self._terms))
        for gram in sorted(grams & self._by_gram.keys()):
            shared[self._by_gram[gram]] += 1
        dice = 2 * shared / (self._gram_counts + len(grams))
        for at in range(len(word) - 1):
            swapped = self._terms.get(word[:at] + word[at + 1] + word[at] + word[at + 2 :])
            if swapped is not None:
                dice[swapped] = max(dice[swapped], _SWAPPED)
        dice[self._images < images] = 0
        if word in self._terms:
            dice[self._terms[word]] = 0
        names, order = list(self._terms), np.argsort(-dice, kind="stable")[:_MOST_SIMILAR]
        return {names[position]: float(dice[position]) for position in order if dice[position] > least}

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Images by word of the texts, without numbers."""
        found = Counter[str]()
        with self._open() as catalog:
            for connection in (catalog.connection, self._memory) if self._is_kept else (self._memory,):
                with self._lock:
                    connection.execute(f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, {TABLE}, row)")
                    found.update(dict(connection.execute("SELECT term, doc FROM vocabulary")))
                    connection.execute("DROP TABLE temp.vocabulary")
        found.subtract(self._former)
        return {word: count for word, count in found.items() if count > 0 and not word.isdecimal()}

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self.counts)

    @cached_property
    def _terms(self) -> dict[str, int]:
        """Positions of the words that may stand for a misspelt one: those without digits, as names of files have."""
        words = (word for word in self.counts if not any(map(str.isdecimal, word)))
        return {word: position for position, word in enumerate(words)}

    @cached_property
    def _images(self) -> Ids:
        return np.array([self.counts[word] for word in self._terms], dtype=np.int64)

    @cached_property
    def _gram_counts(self) -> Doubles:
        return np.array([len(list_grams(word)) for word in self._terms], dtype=np.float64)

    @cached_property
    def _by_gram(self) -> dict[str, Ids]:
        found: dict[str, list[int]] = {}
        for word, position in self._terms.items():
            for gram in list_grams(word):
                found.setdefault(gram, []).append(position)
        return {gram: np.array(positions, dtype=np.int64) for gram, positions in found.items()}

    def _ask(self, query: str, text: str) -> Ids:
        """Ids that a query finds: in the catalogue those with an unchanged text, and the changed ones."""
        with self._lock:
            ids = list(chain.from_iterable(self._memory.execute(query, (text,))))
        if self._is_kept:
            with self._open() as catalog:
                kept = np.fromiter(chain.from_iterable(catalog.connection.execute(query, (text,))), dtype=np.int64)
            if len(self._changed):
                kept = kept[~np.isin(kept, self._changed)]
            ids = [*ids, *kept.tolist()]
        found = np.array(ids, dtype=np.int64)
        positions = np.searchsorted(self._shown, found).clip(max=max(len(self._shown) - 1, 0))
        return found[self._shown[positions] == found] if len(self._shown) else found[:0]


def _quote(term: str) -> str:
    """A term as FTS5 reads it: quoted, so that nothing in it is syntax."""
    return f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"'
