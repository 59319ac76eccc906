"""Full-text index of the images' texts: an FTS5 table in the catalogue, and one in memory for what people changed.

`index.words.words` is the tokenizer: a text is given to SQLite as its words with spaces between.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import chain

import numpy as np

from index.arrays import Doubles, Ids
from index.catalog.reader import Catalog
from index.catalog.rows import COLUMNS, CatalogRow, make_row
from index.words.words import list_grams, split_words, text_of

TABLE = "words"
_CREATE = (  # without positions and texts: 70 bytes an image
    f"CREATE VIRTUAL TABLE {TABLE} USING fts5(text, content='', detail=none, prefix='2 3', "
    "tokenize=\"unicode61 remove_diacritics 0 categories 'L* N* Co M*'\")"
)
_MOST_SIMILAR = 5  # words that stand for an unknown one
_LEAST_OVERLAP = 0.4  # Dice coefficient of the n-grams of similar words
_SWAPPED = 0.6
_MORE_FREQUENT = 10  # times as many images has a word that a rare or misspelt one is taken for
FEWEST = 3  # images from which a word is learnt
_PREFIX_FROM = 2  # characters of half a word


def write_words(connection: sqlite3.Connection) -> None:
    """Create the table in a catalogue, with the texts of its indexed rows."""
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
        open_catalog: opens the catalogue for a thread.
        changed: (n,) ids of rows whose text differs from the catalogue's.
        shown: (N,) rising ids of the images that may be found.
    """

    def __init__(
        self, open_catalog: Callable[[], AbstractContextManager[Catalog]], *, changed: Ids, shown: Ids
    ) -> None:
        self._open, self._shown, self._lock = open_catalog, shown, threading.Lock()
        self._memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        with open_catalog() as catalog:
            execute = catalog.connection.execute
            self._is_kept = execute("SELECT 1 FROM main.sqlite_master WHERE name = ?", (TABLE,)).fetchone() is not None
            self._changed = changed if self._is_kept else shown
            self._memory.execute(_CREATE)
            _fill(self._memory, catalog.rows_of(self._changed.tolist()))

    def find_all(self, words: Sequence[str]) -> Ids:
        """(n,) int64 ids of the images with all of the words, or words that begin with them, best first (BM25)."""
        query = " AND ".join(_quote(word + "*" * (len(word) >= _PREFIX_FROM)) for word in words)
        return self._ask(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ? ORDER BY rank, rowid", query)

    def find(self, terms: Iterable[str]) -> Ids:
        """(n,) rising ids of the images with one of some terms: words, or beginnings of words with a * behind them."""
        query = " OR ".join(map(_quote, terms))
        if not query:
            return self._shown[:0]
        return np.sort(self._ask(f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ?", query))

    def understand(self, word: str) -> dict[str, float]:
        """Terms of the texts that a query's word stands for, with their similarity in 0..1; empty for an unknown one.

        The word itself; else all words that begin with it; else those of about the same n-grams. Words of fewer than
        `FEWEST` images, which text recognition misreads in great number, give way to much more frequent similar ones.
        """
        count = self.counts.get(word, 0)
        if count >= FEWEST:
            return {word: 1.0}
        if len(word) >= _PREFIX_FROM:
            longer = [images for other, images in self.counts.items() if other.startswith(word)]
            if len(longer) > (count > 0) and sum(longer) >= FEWEST:
                return {word + "*": 1.0}
        similar = self.similar(word, least=_LEAST_OVERLAP, images=_MORE_FREQUENT * count)
        if not similar:
            return {word: 1.0} if count else {}
        most = max(self.counts[other] for other in similar)
        frequent = {other: dice for other, dice in similar.items() if _MORE_FREQUENT * self.counts[other] >= most}
        return {other: dice for other, dice in frequent.items() if dice >= 0.9 * max(frequent.values())}

    def find_terms(self, terms: Iterable[Iterable[str]]) -> Ids:
        """(n,) rising ids of the images with one term of each of some words; of a word without terms none."""
        found: Ids = self._shown
        for some in terms:
            found = np.intersect1d(found, self.find(some), assume_unique=True)
        return found

    def similar(self, word: str, *, least: float, images: int = 0) -> dict[str, float]:
        """Words of so many images with the most n-grams in common, and the Dice coefficient, descending.

        It is `_SWAPPED` at least for words whose letters changed places.
        """
        grams, shared = list_grams(word), np.zeros(len(self._terms))
        for gram in sorted(grams & self._by_gram.keys()):
            shared[self._by_gram[gram]] += 1
        dice = 2 * shared / (self._gram_counts + len(grams))
        swapped = [sorted(other) == sorted(word) for other in self._terms]
        dice[swapped] = np.maximum(dice[swapped], _SWAPPED)
        dice[[self.counts[other] < images or other == word for other in self._terms]] = 0
        order = np.argsort(-dice, kind="stable")[:_MOST_SIMILAR]
        return {self._terms[place]: float(dice[place]) for place in order if dice[place] > least}

    @cached_property
    def counts(self) -> dict[str, int]:
        """Images by word of the texts, without words that have no letter."""
        found: dict[str, int] = {}
        with self._open() as catalog:
            for connection in (catalog.connection, self._memory) if self._is_kept else (self._memory,):
                with self._lock:
                    connection.execute(f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, {TABLE}, row)")
                    for word, count in connection.execute("SELECT term, doc FROM vocabulary"):
                        if not word.isdecimal():
                            found[word] = found.get(word, 0) + count
                    connection.execute("DROP TABLE temp.vocabulary")
        return found

    @cached_property
    def _terms(self) -> list[str]:
        """Words that may stand for a misspelt one: without digits, as names of files are, unless few are left."""
        return [word for word in self.counts if not any(map(str.isdecimal, word))]

    @cached_property
    def _gram_counts(self) -> Doubles:
        return np.array([len(list_grams(word)) for word in self._terms], dtype=np.float64)

    @cached_property
    def _by_gram(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, word in enumerate(self._terms):
            for gram in list_grams(word):
                found.setdefault(gram, []).append(place)
        return found

    def _ask(self, query: str, text: str) -> Ids:
        """Ids that a query finds in the catalogue, where their text is unchanged, and among the changed ones."""
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
