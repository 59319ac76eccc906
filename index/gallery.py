"""One version of a gallery, opened for searching: immutable, safe among threads, and checked before it answers."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.catalog import Catalog, CatalogRow, identify_file, read_catalog
from index.embedder import Embedder, Vectors
from index.errors import (
    GalleryDamagedError,
    GalleryError,
    GalleryMismatchError,
    InputError,
    ModelFileError,
    UnknownImageError,
)
from index.exact import NO_ID, Floats, Ids
from index.filters import Filter
from index.hits import GalleryImage, Hit
from index.images import printable_path, valid_text
from index.items import Place, is_below
from index.manifest import CATALOG_NAME, DELETED_NAME, INDEX_NAME, MODEL_NAME, Manifest, Version, check_file
from index.metrics import UNLABELLED, Labels
from index.model_file import hash_file
from index.recent import RecentlyUsed
from index.row_metadata import has_spoiled_labels, has_spoiled_metadata
from index.source_places import describe_move
from index.sources import Source
from index.stored_rows import RowSet
from index.vector_search import VectorSearch
from index.vectors import VectorRows, gather_rows, read_ids, read_shards
from index.versions import find_version, hold_current

logger = logging.getLogger(__name__)

_REMEMBERED_FILTERS = 8


class Gallery:
    """The current version of a gallery; get one from `Gallery.open`.

    Attributes:
        manifest: what the version says of itself.
        sources: where its images come from, by number.
        roots: the sources' roots as text, by the same numbers.
        shards: the stored vectors, mapped; some may be of images that are no members any more.
        ids: (N,) int64 of the members, in rising order.
        name: of the gallery's own folder.
        digest: SHA-256 of the manifest, which no other version of any gallery has.
        count: members.
    """

    def __init__(
        self, path: Path, *, version: Version, manifest: Manifest, threads: int, filter_s: float | None
    ) -> None:
        self.path, self.version, self.manifest, self.digest = path, version.name, manifest, version.manifest_sha256
        self.name = path.name
        self._threads, self._filter_s = threads, filter_s
        self._root = version.folder
        self._catalog_file = identify_file(self._root / CATALOG_NAME)
        self.shards: list[VectorRows] = read_shards(self._root)
        self._deleted = (
            read_ids(self._root / DELETED_NAME) if DELETED_NAME in manifest.files else np.empty(0, dtype=np.int64)
        )
        stored = np.concatenate([rows.ids for rows in self.shards])
        self.ids: Ids = np.setdiff1d(stored, self._deleted, assume_unique=True)
        self.count = len(self.ids)
        self._has_spoiled_labels = False
        with self.catalog() as catalog:
            self._has_spoiled_labels = has_spoiled_labels(catalog.connection)
            self.sources: dict[int, Source] = catalog.sources()
            for move in catalog.moved_sources():
                logger.warning("%s", describe_move(move))
        self.roots = {number: valid_text(str(source.root)) for number, source in self.sources.items()}
        if self._has_spoiled_labels:
            logger.warning("%s: some images have labels that are none; they are left out", self.name)
        self._lock = threading.Lock()
        self._embedder: Embedder | None = None
        self._search: VectorSearch | None = None
        self._kept: RecentlyUsed[Filter, RowSet] = RecentlyUsed(_REMEMBERED_FILTERS)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        model_path: Path | None = None,
        threads: int = 1,
        embedder: Embedder | None = None,
        filter_s: float | None = None,
    ) -> Gallery:
        """Open the current version of a gallery; it stays as it is until the object goes.

        Every file is checked against the manifest: the index when it is first used and the model when it is opened,
        all others here.

        Args:
            path: the gallery folder.
            model_path: a model that must be the one the gallery was built with.
            threads: for one search; requests side by side want 1. The model always runs on one.
            embedder: one that is open already, used if it is of this version's model.
            filter_s: seconds that a filter may take.

        Raises:
            GalleryError: it is missing, unfinished or damaged.
            GalleryMismatchError: `model_path` is another model.
        """
        version, hold = hold_current(path)
        try:
            manifest = Manifest.read(version)
            for name in manifest.files:
                check_file(version.folder, name, manifest, contents=name not in (MODEL_NAME, INDEX_NAME))
            gallery = cls(path.resolve(), version=version, manifest=manifest, threads=threads, filter_s=filter_s)
        except BaseException:
            os.close(hold)
            raise
        weakref.finalize(gallery, os.close, hold)
        gallery._check_rows()
        if model_path is not None:
            gallery._check_model(model_path)
        if embedder is not None and embedder.sha256 == manifest.model_sha256:
            gallery._embedder = embedder
        return gallery

    @contextmanager
    def catalog(self, *, limited: bool = False, asks_metadata: bool = False) -> Iterator[Catalog]:
        """The version's catalogue, for the calling thread.

        Args:
            limited: to the time that a filter may take; filters ask for metadata.
            asks_metadata: whether SQL is to look into the metadata.

        Raises:
            GalleryError: it is damaged, or not the one that was opened any more.
            InputError: it is `limited`, and a statement took longer.
        """
        path = self._root / CATALOG_NAME
        if identify_file(path) != self._catalog_file:  # the vectors are still those of before
            raise self._explain_other_catalog(printable_path(str(path)))
        limit_s = self._filter_s if limited else None
        spoiled = self._has_spoiled_labels or ((limited or asks_metadata) and self._has_spoiled_metadata)
        with read_catalog(path, limit_s=limit_s, spoiled=spoiled) as catalog:
            yield catalog

    @cached_property
    def _has_spoiled_metadata(self) -> bool:
        """Looked for where SQL needs to know: among a million rows it takes half a second."""
        with read_catalog(self._root / CATALOG_NAME) as catalog:
            spoiled = has_spoiled_metadata(catalog.connection)
        if spoiled:
            logger.warning("%s: some images have metadata that is none; it is left out", self.name)
        return spoiled

    def _explain_other_catalog(self, shown: str) -> GalleryError:
        """Why the catalogue is not the file that was opened: another gallery took its place, or the file is changed."""
        with suppress(GalleryError):
            if find_version(self.path).manifest_sha256 == self.digest:  # nothing that writes galleries does that
                sound = "open it again where `retrieval index verify` finds it sound"
                return GalleryDamagedError(shown, f"it was changed while it was open; {sound}, else")
        return GalleryError(shown, "it was replaced while it was open; open it again")

    @property
    def embedder(self) -> Embedder:
        """The version's own model, opened at first use.

        Raises:
            GalleryError: the model file is damaged.
        """
        with self._lock:
            if self._embedder is None:
                path, sha256 = self._root / MODEL_NAME, self.manifest.model_sha256
                check_file(self._root, MODEL_NAME, self.manifest, contents=False)
                try:
                    self._embedder = Embedder(path, threads=1, sha256=sha256)
                except ModelFileError as error:
                    raise GalleryDamagedError(printable_path(str(path)), error.problem) from error
            return self._embedder

    def search(
        self,
        vector: Vectors,
        *,
        k: int | None = 10,
        min_score: float | None = None,
        exclude_id: int | None = None,
        where: Filter | None = None,
    ) -> list[Hit]:
        """The k members most similar to a (D,) float32 unit vector, best first; ties go to the smaller id.

        Fewer are returned where the gallery holds fewer that the filter keeps, or fewer have a similarity of at least
        `min_score`. With `min_score`, k may be None: all that are similar enough are wanted, and are looked for
        exactly. `exclude_id` is never returned.

        Raises:
            InputError: k is below 1, `min_score` is no number, the vector has another width or is not finite, or the
                filter names metadata that no image has.
        """
        excluded = None if exclude_id is None else np.array([exclude_id], dtype=np.int64)
        return self.search_many(vector[None], k=k, min_score=min_score, exclude_ids=excluded, where=where)[0]

    def search_many(
        self,
        vectors: Vectors,
        *,
        k: int | None = 10,
        min_score: float | None = None,
        exclude_ids: Ids | None = None,
        where: Filter | None = None,
    ) -> list[list[Hit]]:
        """What `search` answers to each row of (Q, D) float32 unit vectors, sooner than one by one.

        `exclude_ids` are (Q,) int64, `NO_ID` where a row excludes no member.

        Raises:
            InputError: as `search`.
        """
        ranked = self.rank_many(vectors, k=k, min_score=min_score, exclude_ids=exclude_ids, where=where)
        return self._describe_hits(ranked)

    def rank_many(
        self,
        vectors: Vectors,
        *,
        k: int | None = 10,
        min_score: float | None = None,
        exclude_ids: Ids | None = None,
        where: Filter | None = None,
    ) -> list[tuple[Floats, Ids]]:
        """(scores, ids) of what `search_many` answers, without a look into the catalogue.

        Raises:
            InputError: as `search`.
        """
        dim = self.manifest.embedding_dim
        if (k is None and min_score is None) or (k is not None and k < 1):
            raise InputError(f"k must be at least 1, got {k}")
        if min_score is not None and not np.isfinite(min_score):
            raise InputError(f"min_score must be a finite number, got {min_score}")
        if vectors.shape[1:] != (dim,) or not np.isfinite(vectors).all():
            raise InputError(f"a query must be {dim} finite numbers, got shape {vectors.shape[1:]}")
        if not len(vectors):
            return []
        search, allowed = self._open_search(), None if where is None else self.keep(where)
        ranked: list[tuple[Floats, Ids]] = []
        if k is None:
            ranked = search.search_above(
                vectors, min_score=float(min_score or 0), allowed=allowed, exclude_ids=exclude_ids
            )
        else:
            block_scores, block_ids = search.search(
                vectors,
                k=min(k, self.count),
                allowed=allowed,
                exclude_ids=exclude_ids,
                threads=self._threads,
            )
            for scores, ids in zip(block_scores, block_ids, strict=True):
                wanted = (ids != NO_ID) & (min_score is None or scores >= min_score)
                ranked.append((scores[wanted], ids[wanted]))
        return ranked

    def image(self, image_id: int) -> GalleryImage:
        """One member.

        Raises:
            InputError: no member has this id.
        """
        return self._describe_member(self._row(image_id))

    def place(self, image_id: int) -> Place:
        """Where the bytes of a member, or of a duplicate set aside, are, or were when it was indexed.

        Raises:
            InputError: none has this id, its file or archive is gone, or the catalogue says that it lies outside of
                its source.
        """
        with self.catalog() as catalog:
            row = next(catalog.rows_of([image_id]), None)
        if row is None or row.status not in ("indexed", "duplicate"):
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        source = self.sources.get(row.source)
        if source is None or not is_below(row.archive or row.path, kind=source.kind):
            raise InputError(
                f"image {image_id}: the catalogue names a file outside of its source, which is not read; bring the "
                "gallery up to date: retrieval index update GALLERY"
            )
        place = replace(row.locate(source.root), sha256=row.sha256)
        if not place.file.is_file() and (now := self._find_again(row.source)) is not None:
            place = replace(row.locate(now.root), sha256=row.sha256)
        if not place.file.is_file():
            raise InputError(
                f"{printable_path(row.path)}: the image is no longer in the gallery's source "
                f"{printable_path(source.location)}; put it back, or bring the gallery up to date: "
                "retrieval index update GALLERY, with --root where the images were moved"
            )
        return place

    def _find_again(self, number: int) -> Source | None:
        """A source of the gallery's own folder, which a writer may have moved since; None for one outside."""
        with self.catalog() as catalog:
            return catalog.sources()[number] if number == catalog.added_source() else None

    def vector(self, image_id: int) -> Vectors:
        """The stored (D,) float32 unit vector of a member.

        Raises:
            InputError: no member has this id.
        """
        position = int(np.searchsorted(self.ids, image_id))
        if position >= self.count or self.ids[position] != image_id:
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        here = self.ids[position : position + 1]
        return self.vectors(here).reshape(-1)

    def rows(self, ids: Iterable[int]) -> list[CatalogRow]:
        """The catalogue's rows of members, in the order of their ids as given.

        Raises:
            GalleryDamagedError: an id has no row.
        """
        wanted = list(ids)
        with self.catalog() as catalog:
            rows = catalog.find(wanted)
        if len(rows) != len(set(wanted)):
            raise GalleryDamagedError(
                printable_path(str(self._root / CATALOG_NAME)), "damaged: images without a row"
            )
        return [rows[image_id] for image_id in wanted]

    def vectors(self, image_ids: Ids) -> Vectors:
        """The stored (n, D) float32 unit vectors of (n,) int64 ids of members, in rising order."""
        return gather_rows(image_ids, self.shards, embedding_dim=self.manifest.embedding_dim)

    def sample(self, count: int, *, seed: int) -> list[GalleryImage]:
        """Some different members in random order, the same for the same seed; all where there are fewer."""
        generator = np.random.default_rng(seed)
        chosen = generator.choice(self.count, size=min(count, self.count), replace=False)
        return [self._describe_member(row) for row in self.rows(self.ids[chosen].tolist())]

    def labelled_vectors(self) -> tuple[Vectors, Labels, Ids, list[str]]:
        """What evaluation needs: (N, D) float32 vectors, (N,) int64 labels, (N,) int64 ids, label names.

        Labels are positions in the names, which are sorted; members without a label have `UNLABELLED`.
        """
        with self.catalog() as catalog:
            names_by_row = catalog.labels(status="indexed")
        names = sorted({name for name in names_by_row if name is not None})
        number = {name: position for position, name in enumerate(names)}
        labels = np.array([UNLABELLED if name is None else number[name] for name in names_by_row], dtype=np.int64)
        return self.vectors(self.ids), labels, self.ids, names

    def _row(self, image_id: int) -> CatalogRow:
        with self.catalog() as catalog:
            row = catalog.find([image_id]).get(image_id)
        if row is None:
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        return row

    def _check_rows(self) -> None:
        counts, dim = self.manifest.counts, self.manifest.embedding_dim
        expected = counts.get("indexed"), counts.get("deleted")
        widths = {rows.vectors.shape[1:] for rows in self.shards}
        rising = all((np.diff(rows.ids) > 0).all() for rows in self.shards)
        if expected != (self.count, len(self._deleted)) or widths != {(dim,)} or not rising:
            seen = f"{self.count} vectors of shapes {sorted(widths)} and {len(self._deleted)} deleted"
            problem = (
                f"damaged: {seen}, expected {expected[0]} of width {dim} in rising id order, {expected[1]} deleted"
            )
            raise GalleryDamagedError(printable_path(str(self._root)), problem)

    def _check_model(self, model_path: Path) -> None:
        if not model_path.is_file():
            raise InputError(f"{printable_path(str(model_path))}: no such model file")
        seen = hash_file(model_path)
        if seen != self.manifest.model_sha256:
            raise GalleryMismatchError(
                printable_path(str(self.path)),
                what="model (SHA-256)",
                expected=self.manifest.model_sha256,
                seen=seen,
                advice="leave the model out to use the gallery's own, or build a gallery with this one",
            )

    def _open_search(self) -> VectorSearch:
        with self._lock:
            if self._search is None:
                if INDEX_NAME in self.manifest.files:
                    check_file(self._root, INDEX_NAME, self.manifest, contents=True)
                self._search = VectorSearch.open(
                    self.shards, folder=self._root, described=self.manifest.index, deleted=self._deleted
                )
            return self._search

    def keep(self, where: Filter) -> RowSet:
        """The members that a filter keeps; those of the last filters are remembered.

        Raises:
            InputError: the filter names metadata that no image has, or takes too long.
        """
        kept = self._kept.get(where)
        if kept is None:
            with self.catalog(limited=True) as catalog:
                kept = self._open_search().keep(catalog.matching_ids(where))
            self._kept.put(where, kept)
        return kept

    def matching_ids(self, where: Filter) -> Ids:
        """(n,) int64 ids of the members that a filter keeps, in rising order; else as `keep`."""
        return self._open_search().stored.ids[self.keep(where).positions]

    def fulfil(self, image_ids: Ids, where: Filter) -> npt.NDArray[np.bool_]:
        """(n,) bool: which of (n,) int64 ids of members a filter keeps; else as `keep`."""
        return self.keep(where).mask[np.searchsorted(self._open_search().stored.ids, image_ids)]

    def remembers(self, where: Filter) -> bool:
        """Whether `keep`, and so a search with this filter, has nothing to look up."""
        return where in self._kept

    def _describe_hits(self, ranked: Sequence[tuple[Floats, Ids]]) -> list[list[Hit]]:
        """The results of each query's (scores, ids), with one look into the catalogue."""
        ids = sorted({image_id for _, row in ranked for image_id in row.tolist()})
        rows = dict(zip(ids, self.rows(ids), strict=True))
        return [
            [
                self._describe_hit(rows[key], rank=rank, score=score)
                for rank, (score, key) in enumerate(zip(scores.tolist(), keys.tolist(), strict=True), start=1)
            ]
            for scores, keys in ranked
        ]

    def _describe_hit(self, row: CatalogRow, *, rank: int, score: float) -> Hit:
        return Hit(rank, row.id, score, row.path, row.label, self.roots[row.source], row.metadata_json)

    def _describe_member(self, row: CatalogRow) -> GalleryImage:
        return GalleryImage(row.id, row.path, row.label, self.roots[row.source])
