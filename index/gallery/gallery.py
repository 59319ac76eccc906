"""An open version of a gallery: immutable, checked, and safe among threads."""

import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import NO_ID, Floats, Ids, Labels, Vectors, number_labels
from index.catalog.decided_rows import NOTHING_DECIDED, DecidedRows
from index.catalog.reader import Catalog, read_catalog
from index.catalog.rows import GPS_SETTING, CatalogRow, has_spoiled_labels, has_spoiled_metadata
from index.errors import GalleryDamagedError, GalleryError, InputError, ModelFileError, UnknownImageError
from index.filters.condition import Condition
from index.filters.parser import parse_column, parse_filter
from index.gallery.any_query import AnyQuery, make_vector
from index.gallery.computed_by import require_same_output, usual_runtime_of
from index.gallery.image_groups import FOLDER, ImageGroups
from index.gallery.ranking import Hit, SearchOptions, answer
from index.images.file_facts import GPS
from index.items import Place
from index.labels.decided_labels import DECISIONS_WAIT_S, Annotations
from index.model.contract import ModelContract, find_contract
from index.model.embedder import Embedder
from index.model.text_encoder import TextEncoder
from index.outputs import COPY, SEMANTIC, UNTRAINED
from index.sources.source import ImageSource, stays_inside
from index.text import printable_path, valid_text
from index.threads import RecentlyUsed
from index.vectors.stores import IdSubset, VectorStore, open_store
from index.versions.manifest import CATALOG_NAME, INDEX_NAME, MODEL_NAME, Manifest, Version, check_file
from index.versions.versions import find_version, hold_current
from index.words.taught import TaughtWords, WordQuery
from index.words.words import is_text
from index.words.written import WrittenWords

logger = logging.getLogger(__name__)
_REMEMBERED_BYTES = 8 << 20  # of rows, about
_BYTES_OF_A_ROW = 1000  # beside its path and metadata
_REMEMBERED_FILTERS, _REMEMBERED_GROUPS = 8, 2
_REMEMBERED_WORDS = 8  # queries, whose words would be learnt again for each page of results


class Gallery:
    """The current version of a gallery; get one from `Gallery.open`.

    Attributes:
        roots: the sources' roots as text, by their numbers.
        ids: (N,) int64 of the members that are not dropped, in rising order.
        digest: SHA-256 of the manifest, unique to the version.
        output: whose vectors, of the `width` D, are searched: `semantic`, or another one (see `view`).
        index: what the manifest says of their index.
    """

    def __init__(
        self, path: Path, *, version: Version, manifest: Manifest, threads: int, filter_s: float | None, shows_gps: bool
    ) -> None:
        self.path, self.version, self.manifest, self.digest = path, version.name, manifest, version.manifest_sha256
        self.name = path.name
        self.threads, self._root = threads, version.folder
        self._given: Gallery | None = None
        self.annotations = Annotations()
        self._ask_by(SEMANTIC)
        self._catalog = _OpenedCatalog(path, version, filter_s=filter_s, shows_gps=shows_gps)
        with self.catalog() as catalog:
            self.sources: dict[int, ImageSource] = catalog.sources()
            for move in catalog.moved_sources():
                logger.warning("%s", move)
        self.roots = {number: valid_text(source.root) for number, source in self.sources.items()}
        self._opened = _Opened()

    def _ask_by(self, output: str) -> None:
        part = self.manifest.part(output)
        self.output, self.width, self.index = output, part.embedding_dim, part.index
        self.store: VectorStore = open_store(self._root, self.manifest, output)
        self._forget_choices()

    def _forget_choices(self) -> None:
        """Reset what depends on the store or on decisions."""
        dropped = self.decided.left_out
        self.ids: Ids = np.setdiff1d(self.store.ids, dropped, assume_unique=True) if len(dropped) else self.store.ids
        self.count = len(self.ids)
        self._kept: RecentlyUsed[Condition, IdSubset] = RecentlyUsed(_REMEMBERED_FILTERS)
        self._groups: RecentlyUsed[str, ImageGroups] = RecentlyUsed(_REMEMBERED_GROUPS)
        self._shown: IdSubset | None = None
        self._words: TaughtWords | None = None
        self._asked: RecentlyUsed[str, WordQuery] = RecentlyUsed(_REMEMBERED_WORDS)

    @property
    def decided(self) -> DecidedRows:
        """The label decisions when the version was opened: rows with a changed label, or dropped."""
        return self.annotations.rows

    @property
    def without_decisions(self) -> "Gallery":
        """View of the version without decisions: with given labels and dropped images."""
        return self if self._given is None else self._given.view(self.output)

    def has_newest_decisions(self) -> bool:
        """Whether no decision came since; takes microseconds and never waits."""
        return self.annotations.is_current(self.path)

    def read_decisions(self, *, wait_s: float = DECISIONS_WAIT_S) -> "Gallery":
        """View of the version with the newest label decisions; itself where none came since. Waits for writers."""
        given = self.without_decisions.view(SEMANTIC)
        annotations = self.annotations.read_again(self.path, given.catalog, wait_s=wait_s)
        if annotations.rows is self.decided:
            self.annotations = annotations
            return self
        other = copy(given)
        other._given, other.annotations = given, annotations
        other._opened = replace(given._opened, views={})
        other._forget_choices()
        return other.view(self.output)

    def view(self, output: str) -> "Gallery":
        """View of the version, searched by `semantic` similarity or for a `copy` of the image."""
        if output == self.output:
            return self
        if output not in self.manifest.outputs:
            shown = printable_path(self.name)
            raise InputError(
                f"expected the output {SEMANTIC} or {COPY}, got {output!r}"
                if output != COPY
                else f"{shown}: its model has no output for copy detection, so it cannot be searched by {COPY}; "
                "build another gallery with a model that has one"
            )
        with self._opened.lock:
            other = self._opened.views.get(output)
            if other is None:
                other = copy(self)
                other._ask_by(output)
                self._opened.views[output] = other
        return other

    def for_label_errors(self) -> "Gallery":
        """View of the version to find label errors in: by the untrained vectors where it has them."""
        return self.view(UNTRAINED) if UNTRAINED in self.manifest.outputs else self

    @property
    def knows_labels(self) -> bool:
        """Whether the model was trained on labels, so that wrong labels it has learnt look right."""
        contract = self.find_contract()
        return contract is not None and contract.knows_labels

    def find_contract(self) -> ModelContract | None:
        """The contract of the model, without opening it; None without a complete one."""
        return find_contract(self._root / MODEL_NAME)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        threads: int = 1,
        embedder: Embedder | None = None,
        filter_s: float | None = None,
        shows_gps: bool = True,
    ) -> "Gallery":
        """Open the current version of a gallery, with its label decisions.

        Files are checked against the manifest: the index and the model at first use, all others here.

        Args:
            threads: for one search; concurrent requests want 1. The model always runs on one.
            embedder: an open one, used if it is of this version's model; else the version's own is opened at first use.
            filter_s: seconds that a filter may take.
            shows_gps: whether there are the places of photos that the gallery keeps, for filters and in metadata.
        """
        version, hold = hold_current(path)
        try:
            manifest = Manifest.read(version)
            for name in manifest.files:
                later = name.startswith(f"{Path(MODEL_NAME).stem}.") or name.endswith(INDEX_NAME)
                check_file(version.folder, name, manifest, contents=not later)
            gallery = cls(
                path.resolve(),
                version=version,
                manifest=manifest,
                threads=threads,
                filter_s=filter_s,
                shows_gps=shows_gps,
            )
        except BaseException:
            os.close(hold)
            raise
        weakref.finalize(gallery._catalog, os.close, hold)  # with the last view of the version
        if embedder is not None and embedder.sha256 == manifest.model_sha256:
            gallery._opened.embedders[SEMANTIC] = embedder.with_outputs(SEMANTIC)
        return gallery.read_decisions()

    def catalog(self, *, limited: bool = False, asks_metadata: bool = False) -> AbstractContextManager[Catalog]:
        """The version's catalogue, for this thread; `limited` in time, `asks_metadata` where SQL reads it."""
        return self._catalog.read(limited=limited, asks_metadata=asks_metadata, decided=self.decided)

    @property
    def embedder(self) -> Embedder:
        """The version's own model, opened at first use, giving the gallery's output."""
        with self._opened.lock:
            known = self._opened.embedders
            if SEMANTIC not in known:
                path, sha256 = self._root / MODEL_NAME, self.manifest.model_sha256
                check_file(self._root, MODEL_NAME, self.manifest, contents=False)
                try:
                    opened = Embedder(path, threads=1, sha256=sha256, backend=usual_runtime_of(self.manifest.runtime))
                except ModelFileError as error:
                    raise GalleryDamagedError(printable_path(path), error.problem) from error
                require_same_output(self.manifest.runtime, opened, gallery=self.path)
                known[SEMANTIC] = opened
            if self.output not in known:
                known[self.output] = known[SEMANTIC].with_outputs(self.output)
            return known[self.output]

    @property
    def words(self) -> TaughtWords:
        """The words of the images' texts, with what they look like; indexed at the first use."""
        if self._words is None:
            # Functions of this gallery would keep an unused version open.
            open_given = partial(self._catalog.read, limited=False, asks_metadata=False)
            written = WrittenWords(open_given, decided=self.decided, shown=self.ids)
            self._words = TaughtWords(written, ids=self.ids, gather=self.store.gather)
        return self._words

    def ask_words(self, text: str) -> WordQuery:
        """What the words of a query mean here, the last ones cached; an InputError where nothing is known."""
        if self.output != SEMANTIC:
            raise InputError(f"a search by words finds what looks so, not copies: search by {SEMANTIC}")
        found = self._asked.get(text)
        if found is None:
            encoder = self.text_encoder
            found = self.words.ask(text, embed=None if encoder is None else encoder.embed)
            self._asked.put(text, found)
        return found

    @property
    def text_encoder(self) -> TextEncoder | None:
        """The text tower of the version's own model, opened at first use; None without one."""
        with self._opened.text_lock:
            if not self._opened.text_encoders:
                try:
                    self._opened.text_encoders.append(TextEncoder.open(self._root / MODEL_NAME))
                except ModelFileError as error:
                    raise GalleryDamagedError(printable_path(error.path), error.problem) from error
            return self._opened.text_encoders[0]

    def search(
        self,
        query: "AnyQuery | WordQuery",
        *,
        k: int | None = 10,
        min_score: float | None = None,
        exclude_id: int | None = None,
        where: Condition | str | None = None,
        group_by: str | None = None,
    ) -> list[Hit]:
        """The k members most similar to the query, best first; ties go to the smaller id.

        Args:
            query: words, by `ask_words` if a file is called so; an image by path, as bytes, of PIL, as (H, W, 3) uint8
                array; or a (D,) float vector.
            k: results at most; None, with `min_score`: all that are similar enough, found exactly.
            exclude_id: a member that is not returned.
            where: a filter, such as `"label = 'shoes' AND price < 20"`.
            group_by: a metadata column, `label` or `folder`: of the images with one value only the best is a hit, which
                has the others as `duplicates`; k counts groups, and images without a value stay alone.
        """
        query = self.ask_words(query) if isinstance(query, str) and is_text(query) else query
        words, found = (query, query.vector) if isinstance(query, WordQuery) else (None, query)
        vector = make_vector(found, dim=self.width, open_embedder=lambda: self.embedder)
        where = parse_filter(where) if isinstance(where, str) else where
        if not isinstance(where, Condition | None):
            raise InputError(f"where: expected a filter as text, got {where!r}")
        if exclude_id is not None and not (isinstance(exclude_id, int | np.integer) and abs(exclude_id) < 1 << 63):
            raise InputError(f"exclude_id must be the id of a member, got {exclude_id!r}")
        excluded = frozenset(() if exclude_id is None else (int(exclude_id),))
        options = SearchOptions(k=k, min_score=min_score, exclude_ids=excluded, group_by=group_by, words=words)
        return answer(self, vector[None], [options], where=where)[0]

    def search_many(self, vectors: Vectors, *, where: Condition | None = None, **options: Any) -> list[list[Hit]]:
        """`search` for each row of (Q, D) float32 unit vectors, faster than one by one, by `SearchOptions`."""
        return answer(self, vectors, [SearchOptions(**options)] * len(vectors), where=where)

    def rank_many(
        self, vectors: Vectors, *, k: int | None, min_score: float | None = None, where: Condition | None = None
    ) -> list[tuple[Floats, Ids]]:
        """(scores, ids) of the k members nearest to each of (Q, D) vectors, or of all from `min_score` on."""
        if vectors.shape[1:] != (self.width,) or not np.isfinite(vectors).all():
            raise InputError(f"a query must be {self.width} finite numbers, got shape {vectors.shape[1:]}")
        if not len(vectors):
            return []
        among = self.choose_among(where)
        if k is None:
            return self.store.search_above(vectors, min_score=float(min_score or 0), among=among)
        found = self.store.search(vectors, k=min(k, self.count), among=among, threads=self.threads)
        ranked = []
        for scores, ids in zip(*found, strict=True):
            there = ids != NO_ID
            ranked.append((scores[there], ids[there]))
        return ranked

    def image(self, image_id: int) -> CatalogRow:
        row = self._catalog.find([_check_id(image_id)]).get(image_id)
        if row is None:
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        return self.decided.apply(row)

    def place(self, image_id: int) -> Place:
        """The place of the bytes of a member, or of a duplicate; an InputError where they are gone."""
        with self.without_decisions.catalog() as catalog:
            row = next(catalog.rows_of([_check_id(image_id)]), None)
        if row is None or row.status not in ("indexed", "duplicate"):
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        return self.place_of(row)

    def place_of(self, row: CatalogRow) -> Place:
        """Place of the bytes of a row's image; an InputError where they are gone."""
        source = self.sources.get(row.source)
        if source is None or not stays_inside(source, row.archive or row.path):
            raise InputError(
                f"image {row.id}: the catalogue names a file outside of its source, which is not read; bring the "
                "gallery up to date: retrieval index update GALLERY"
            )
        place = replace(source.locate(row), sha256=row.sha256)
        if not place.is_there():  # a writer may have moved the gallery's own source since
            with self.catalog() as catalog:
                if row.source == catalog.added_source():
                    place = replace(catalog.sources()[row.source].locate(row), sha256=row.sha256)
        if not place.is_there():
            raise InputError(
                f"{printable_path(row.path)}: the image is no longer in the gallery's source "
                f"{printable_path(source.location)}; put it back, or bring the gallery up to date: "
                "retrieval index update GALLERY, with --root where the images were moved"
            )
        return place

    def vector(self, image_id: int) -> Vectors:
        """The stored (D,) float32 unit vector of a member, dropped or not."""
        members = self.store.ids
        position = int(np.searchsorted(members, _check_id(image_id)))
        here = members[position : position + 1]
        if here.tolist() != [image_id]:
            raise UnknownImageError(image_id, gallery=printable_path(self.name))
        return self.vectors(here).reshape(-1)

    def rows(self, ids: Iterable[int]) -> list[CatalogRow]:
        """The catalogue's rows of members, dropped ones included, in the order of the ids."""
        wanted = list(ids)
        rows = self._catalog.find(wanted)
        if len(rows) != len(set(wanted)):
            shown = printable_path(str(self._root / CATALOG_NAME))
            raise GalleryDamagedError(shown, "damaged: images without a row")
        decided = self.decided
        return [decided.apply(rows[image_id]) for image_id in wanted]

    def vectors(self, image_ids: Ids) -> Vectors:
        """The stored (n, D) float32 unit vectors of (n,) int64 ids of members."""
        return self.store.gather(image_ids)

    def sample(self, count: int, *, seed: int) -> list[CatalogRow]:
        generator = np.random.default_rng(seed)
        chosen = generator.choice(self.count, size=min(count, self.count), replace=False)
        return self.rows(self.ids[chosen].tolist())

    def labelled_vectors(self) -> tuple[Vectors, Labels, Ids, list[str]]:
        """(N, D) vectors, (N,) labels as positions in the sorted names or `UNLABELLED`, (N,) ids, and the names."""
        with self.catalog() as catalog:
            labels, names = number_labels(catalog.labels(status="indexed"))
        return self.vectors(self.ids), labels, self.ids, names

    def choose_among(self, where: Condition | None) -> IdSubset | None:
        """The members that a search may find; None: all."""
        if where is not None:
            return self.select(where)
        if self._shown is None and len(self.decided.left_out):
            self._shown = self.store.subset(self.ids)
        return self._shown

    def select(self, where: Condition) -> IdSubset:
        """The members that a filter keeps; the last filters are cached."""
        kept = self._kept.get(where)
        if kept is None:
            with self.catalog(limited=True) as catalog:
                kept = self.store.subset(catalog.matching_ids(where))
            self._kept.put(where, kept)
        return kept

    def group_by(self, name: str) -> ImageGroups:
        """Groups of members by a column, or by `folder`, without those that have no value; the last are cached."""
        groups = self._groups.get(name)
        if groups is None:
            with self.catalog(limited=True) as catalog:
                groups = ImageGroups(catalog.folders() if name == FOLDER else catalog.values(parse_column(name)))
            self._groups.put(name, groups)
        return groups

    def matching_ids(self, where: Condition) -> Ids:
        """(n,) int64 rising ids of the members that a filter keeps."""
        return self.select(where).ids

    def remembers(self, where: Condition) -> bool:
        """Whether `select` has the filter in its cache."""
        return where in self._kept


@dataclass(slots=True)
class _Opened:
    """State that all views of a version share, and the views by output."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    text_lock: threading.Lock = field(default_factory=threading.Lock)
    embedders: dict[str, Embedder] = field(default_factory=dict)
    text_encoders: list[TextEncoder | None] = field(default_factory=list)  # the one, after its first use
    views: dict[str, Gallery] = field(default_factory=dict)


def _check_id(image_id: int) -> int:
    if not isinstance(image_id, int | np.integer):
        raise InputError(f"the id of an image must be a whole number, got {image_id!r}")
    return int(image_id)


class _OpenedCatalog:
    """The catalogue of a version, with a cache of rows."""

    def __init__(self, gallery: Path, version: Version, *, filter_s: float | None, shows_gps: bool) -> None:
        self._gallery, self._digest, self._filter_s = gallery, version.manifest_sha256, filter_s
        self._path = version.folder / CATALOG_NAME
        self._file = _identify(self._path)
        self._rows: RecentlyUsed[int, CatalogRow] = RecentlyUsed(
            _REMEMBERED_BYTES, size=lambda row: _BYTES_OF_A_ROW + len(row.path) + len(row.metadata_json or "")
        )
        with read_catalog(self._path) as catalog:
            self._has_spoiled_labels = has_spoiled_labels(catalog.connection)
            self._hidden = () if shows_gps or catalog.setting(GPS_SETTING) is None else GPS
        if self._has_spoiled_labels:
            logger.warning("%s: some images have invalid labels; they are left out", gallery.name)

    @contextmanager
    def read(self, *, limited: bool, asks_metadata: bool, decided: DecidedRows = NOTHING_DECIDED) -> Iterator[Catalog]:
        self._require_same_file()
        limit_s = self._filter_s if limited else None
        spoiled = self._has_spoiled_labels or ((limited or asks_metadata) and self._has_spoiled_metadata)
        opened = read_catalog(self._path, limit_s=limit_s, spoiled=spoiled, decided=decided, hidden=self._hidden)
        with opened as catalog:
            yield catalog

    def find(self, ids: Iterable[int]) -> dict[int, CatalogRow]:
        """Indexed rows of known ids, without decisions, by id; cached, as reading them takes as long as a search."""
        wanted = list(ids)
        rows = {image_id: row for image_id in wanted if (row := self._rows.get(image_id)) is not None}
        if missing := [image_id for image_id in wanted if image_id not in rows]:
            with self.read(limited=False, asks_metadata=False) as catalog:
                rows |= (found := catalog.find(missing))
            for image_id, row in found.items():
                self._rows.put(image_id, row)
        else:
            self._require_same_file()  # as every reading does
        return rows

    @cached_property
    def _has_spoiled_metadata(self) -> bool:
        """Computed when SQL reads metadata: a million rows take half a second."""
        with read_catalog(self._path) as catalog:
            spoiled = has_spoiled_metadata(catalog.connection)
        if spoiled:
            logger.warning("%s: some images have invalid metadata; it is left out", self._gallery.name)
        return spoiled

    def _require_same_file(self) -> None:
        if _identify(self._path) == self._file:
            return
        shown, digest = printable_path(self._path), ""  # the open vectors are of the old one
        with suppress(GalleryError):
            digest = find_version(self._gallery).manifest_sha256
        if digest == self._digest:  # no writer of galleries does that
            sound = "open it again where `retrieval index verify` finds it sound"
            raise GalleryDamagedError(shown, f"it was changed while it was open; {sound}, else")
        raise GalleryError(shown, "it was replaced while it was open; open it again")


def _identify(path: Path) -> tuple[int, int, int] | None:
    """Device, inode and time of a file, to notice a replaced one; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
