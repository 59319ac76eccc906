"""Ranking of members, for library, command line and server: lowest score, near-duplicates, offset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.filters.condition import Condition
from index.gallery.image_groups import ImageGroups
from index.text import valid_text
from index.vectors.exact import measure_cosines
from index.words.words import split_words, text_of

if TYPE_CHECKING:
    from index.gallery.gallery import Gallery
    from index.words.taught import WordQuery

MAX_DUPLICATES = 100  # named under one hit
_MEASURED = 1000  # images of a group whose vectors are read at once; of more the nearest are searched
FoundBy: TypeAlias = Literal["words", "looks", "words and looks"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: a member of the gallery, with its rank from 1 and its cosine similarity as `score`.

    `row` is None in a search without rows; `duplicates` are (id, score) of the first `MAX_DUPLICATES` collapsed into
    it: near-duplicates, or images of its group. In a search by words, `words` are those of its text that the query
    means, and `found_by` says what found it.
    """

    rank: int
    id: int
    score: float
    row: CatalogRow | None = None
    source: str = ""
    duplicates: tuple[tuple[int, float], ...] = ()
    duplicates_count: int = 0
    words: tuple[str, ...] = ()
    found_by: FoundBy | None = None

    @property
    def _row(self) -> CatalogRow:
        if self.row is None:
            raise ValueError("this search returned ids and scores, without rows of the catalogue")
        return self.row

    @property
    def path(self) -> str:
        """The path below its source's root, undecodable bytes as surrogates."""
        return self._row.path

    @property
    def label(self) -> str | None:
        """The current label; `given_label` is what the source or label file gave."""
        return self._row.label

    @property
    def given_label(self) -> str | None:
        return self._row.given_label

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The member's metadata, JSON values by name; empty without."""
        return self._row.metadata

    @property
    def location(self) -> str:
        """The path with its source's root before it."""
        return os.path.join(self.source, self.path)

    def to_json(self) -> dict[str, Any]:
        """The result as `search --json` prints it; `given_label` only where it is another one than `label`."""
        return {
            "rank": self.rank,
            "id": self.id,
            "score": self.score,
            "path": valid_text(self.path),
            "source": self.source,
            "label": self.label,
            **({} if self.given_label == self.label else {"given_label": self.given_label}),
            "metadata": self.metadata,
            **({"duplicates_count": self.duplicates_count} if self.duplicates_count else {}),
            **({} if self.found_by is None else {"found_by": self.found_by, "words": self.words}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What a search returns for one vector.

    Attributes:
        k: hits at most; None, with `min_score`: all that are similar enough, found exactly.
        offset: hits to leave out before the first.
        exclude_ids: members that are never hits.
        group_by: only the best of the images with the same value of this column, or in one `folder`, is a hit.
        ahead: hits beyond `k`, which tell whether there is another page.
        words: what a search by words means: images whose texts have them get a bonus over others that look so.
    """

    k: int | None = 10
    offset: int = 0
    min_score: float | None = None
    exclude_ids: frozenset[int] = frozenset()
    group_by: str | None = None
    ahead: int = 0
    words: WordQuery | None = None

    def __post_init__(self) -> None:
        k, min_score = self.k, self.min_score
        if not isinstance(k, int | np.integer | None):
            raise InputError(f"k must be a whole number, got {k!r}")
        if (k is None and min_score is None) or (k is not None and k < 1):
            raise InputError(f"k must be at least 1, got {k}")
        if min_score is not None and (isinstance(min_score, str) or not np.isfinite(min_score)):
            raise InputError(f"min_score must be a finite number, got {min_score!r}")

    @property
    def end(self) -> int | None:
        """The rank of the last hit; None: of all that are similar enough."""
        return None if self.k is None else self.offset + self.k + self.ahead

    @property
    def candidates(self) -> int | None:
        """The number of nearest members that are enough unless groups are collapsed; None: all."""
        if self.end is None:
            return None
        written = 0 if self.words is None else min(len(self.words.written), self.end)
        return self.end + len(self.exclude_ids) + written


def answer(
    gallery: Gallery,
    vectors: Vectors,
    searches: Sequence[SearchOptions],
    *,
    where: Condition | None = None,
    groups: Sequence[ImageGroups | None] | None = None,
    with_rows: bool = True,
) -> list[list[Hit]]:
    """The hits of one search for each row of (Q, D) float32 unit vectors, best first; ties go to the smaller id.

    Args:
        searches: Q of them; either all or none have a `k`.
        groups: for each search, the groups of which only the best is a hit; None: those of its `group_by`.
        with_rows: read the rows of all hits, in one query of the catalogue.
    """
    depths = [search.candidates for search in searches]
    most = max((depth for depth in depths if depth is not None), default=None)
    least = min((search.min_score for search in searches if search.min_score is not None), default=None)
    nearest = gallery.rank_many(vectors, k=most, min_score=least, where=where)
    groups = [
        given or (None if search.group_by is None else gallery.group_by(search.group_by))
        for search, given in zip(searches, groups or [None] * len(searches), strict=True)
    ]
    ranked = [
        # A batch does not lengthen the list of one of its searches.
        _choose(gallery, vector, (scores[:depth], ids[:depth]), search, where=where, groups=one)
        for vector, search, depth, one, (scores, ids) in zip(vectors, searches, depths, groups, nearest, strict=True)
    ]
    wanted = sorted({image_id for chosen in ranked for image_id, _ in chosen})
    known: dict[int, tuple[CatalogRow | None, str]] = dict.fromkeys(wanted, (None, ""))
    if with_rows:
        known = {row.id: (row, gallery.roots[row.source]) for row in gallery.rows(wanted)}
    answers: list[list[Hit]] = []
    for vector, search, one, chosen in zip(vectors, searches, groups, ranked, strict=True):
        numbered = enumerate(chosen, search.offset + 1)
        hits = [Hit(rank, image_id, score, *known[image_id]) for rank, (image_id, score) in numbered]
        if search.words is not None:
            hits = [_explain(hit, search.words) for hit in hits]
        if one is not None:
            for place, hit in enumerate(hits):
                hits[place] = _add_duplicates(gallery, vector, hit, one.members(hit.id), search, where)
        answers.append(hits)
    return answers


def _choose(
    gallery: Gallery,
    vector: Vectors,
    nearest: tuple[Floats, Ids],
    search: SearchOptions,
    *,
    where: Condition | None,
    groups: ImageGroups | None,
) -> list[tuple[int, float]]:
    """(id, score) of the hits of a search, from more candidates where groups used them up."""
    wanted, least = search.candidates, search.min_score
    shown = slice(search.offset, search.end)

    def cut(scores: Floats, ids: Ids) -> tuple[Floats, Ids]:
        kept = ~np.isin(ids, list(search.exclude_ids))
        if least is not None:
            kept &= scores >= least
        return scores[kept], ids[kept]

    while True:
        scores, ids = nearest
        is_all = wanted is None or len(ids) < wanted or (least is not None and len(ids) > 0 and scores[-1] < least)
        scores, ids = cut(scores, ids)
        if search.words is not None:
            written_scores, written = cut(*_rank_written(gallery, vector, search, k=wanted, where=where))
            scores, ids = _merge(search.words, (written_scores, written), (scores, ids))
        if groups is not None:
            best = np.sort(np.unique(groups.heads(ids), return_index=True)[1])
            ids, scores = ids[best], scores[best]
            # With all groups found, and no image outside of them, more candidates bring nothing.
            is_all |= len(ids) == groups.count and len(groups.grouped) >= gallery.count
        if groups is None or wanted is None or search.end is None or is_all or len(ids) >= search.end:
            return list(zip(ids[shown].tolist(), scores[shown].tolist(), strict=True))
        wanted *= 4
        nearest = gallery.rank_many(vector[None], k=wanted, where=where)[0]


def _rank_written(
    gallery: Gallery, vector: Vectors, search: SearchOptions, *, k: int | None, where: Condition | None
) -> tuple[Floats, Ids]:
    """(scores, ids) of the first k images whose texts have the words: by their looks where these are known."""
    words = search.words
    assert words is not None
    ids = words.written if where is None else words.written[gallery.select(where).has(words.written)]
    if not words.is_known:
        ids = ids[:k] if search.min_score is None else ids  # a lowest score may leave out the first
        return measure_cosines(gallery.vectors(ids), vector), ids
    if not len(ids):
        return np.empty(0, dtype=np.float32), ids
    among, count = gallery.store.subset(np.sort(ids)), len(ids) if k is None else min(k, len(ids))
    scores, found = gallery.store.search(vector[None], k=count, among=among, threads=gallery.threads)
    return scores[0][found[0] != NO_ID], found[0][found[0] != NO_ID]


def _merge(words: WordQuery, written: tuple[Floats, Ids], looks: tuple[Floats, Ids]) -> tuple[Floats, Ids]:
    """(scores, ids) of images with the words and of those that look so: the former get a bonus."""
    if not words.is_known:
        return written
    others = ~np.isin(looks[1], words.written)
    scores, ids = np.concatenate([written[0], looks[0][others]]), np.concatenate([written[1], looks[1][others]])
    ranked_by = scores + np.where(np.arange(len(ids)) < len(written[1]), words.written_bonus, 0).astype(scores.dtype)
    order = np.lexsort((ids, -ranked_by))
    return scores[order], ids[order]


def _explain(hit: Hit, words: WordQuery) -> Hit:
    """A hit with the words of its text, and what found it."""
    is_written, looks_so = hit.id in words.written_set, words.is_known and hit.score >= words.least_score
    found_by: FoundBy = "looks" if not is_written else "words and looks" if looks_so else "words"
    own = set[str]() if hit.row is None else set(split_words(text_of(hit.row)))
    return replace(hit, words=tuple(sorted(word for word in own if words.means(word))), found_by=found_by)


def _add_duplicates(
    gallery: Gallery, vector: Vectors, hit: Hit, same: Ids, search: SearchOptions, where: Condition | None
) -> Hit:
    """A hit with those of the images `same` of its group that the search would find too."""
    left_out = [hit.id, *search.exclude_ids]
    ids, least = np.setdiff1d(np.setdiff1d(same, left_out), gallery.decided.left_out), search.min_score
    if where is not None:
        ids = ids[gallery.select(where).has(ids)]
    if len(ids) <= _MEASURED:
        scores = measure_cosines(gallery.vectors(ids), vector)
        order = np.argsort(-scores, kind="stable")
        scores, ids = scores[order], ids[order]
        count = len(ids) if least is None else int(np.count_nonzero(scores >= least))
    elif least is not None:
        scores, ids = gallery.store.search_above(vector[None], min_score=least, among=gallery.store.subset(ids))[0]
        count = len(ids)
    else:
        count, among = len(ids), gallery.store.subset(ids)
        found = gallery.store.search(vector[None], k=MAX_DUPLICATES, among=among, threads=gallery.threads)
        scores, ids = found[0][0], found[1][0]
    named = slice(min(count, MAX_DUPLICATES))
    duplicates = tuple(zip(ids[named].tolist(), scores[named].tolist(), strict=True))
    return replace(hit, duplicates=duplicates, duplicates_count=count)
