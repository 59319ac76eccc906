"""One version of a gallery, opened for searching: immutable, safe among threads, and checked before it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.catalog import CatalogRow, read_catalog
from index.embedder import Embedder, Vectors
from index.errors import GalleryDamagedError, GalleryError, GalleryMismatchError, InputError
from index.exact import NO_ID, Floats, Ids, search
from index.flat_index import read_index, search_index
from index.images import printable_path, valid_text
from index.metrics import UNLABELLED, Labels
from index.model_file import hash_file
from index.vectors import VectorRows, gather_rows, read_shards
from index.versions import (
    CATALOG_NAME,
    INDEX_NAME,
    MODEL_NAME,
    Manifest,
    check_file,
    read_current,
    versions_folder,
)

_HASHED_ON_OPEN_BYTES = 16 * 1024 * 1024
_SPARE_CANDIDATES = 16
_SCORE_NOISE = 1e-5  # bound on what the order of a float32 sum changes in a product of unit vectors


@dataclass(frozen=True, slots=True)
class GalleryImage:
    """A member: its id, its path below the source folder (undecodable bytes as surrogates), and its label."""

    id: int
    path: str
    label: str | None


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: `rank` counts from 1, `score` is the cosine similarity."""

    rank: int
    id: int
    score: float
    path: str
    label: str | None

    def to_json(self) -> dict[str, Any]:
        """The result as `search --json` prints it; undecodable bytes of the path are shown as escapes."""
        return {
            "rank": self.rank,
            "id": self.id,
            "score": self.score,
            "path": valid_text(self.path),
            "label": self.label,
        }


class Gallery:
    """The current version of a gallery; get one from `Gallery.open`.

    Attributes:
        manifest: what the version says of itself.
        folder: the source images.
        shards: the vectors, mapped.
        name: of the gallery's own folder.
        count: indexed images.
    """

    def __init__(self, path: Path, *, version: str, manifest: Manifest, threads: int) -> None:
        self.path, self.version, self.manifest = path, version, manifest
        self.folder = Path(manifest.source_folder)
        self.name = path.name
        self._threads = threads
        self._root = versions_folder(path) / version
        self.shards: list[VectorRows] = read_shards(self._root)
        self.ids: Ids = np.concatenate([rows.ids for rows in self.shards])
        self.count = len(self.ids)
        self._model_checked = False
        self._lock = threading.Lock()
        self._embedder: Embedder | None = None
        self._index: Any = None

    @classmethod
    def open(cls, path: Path, *, model_path: Path | None = None, threads: int = 1) -> Gallery:
        """Open the current version of a gallery.

        The sizes of all files and the checksums of small ones are checked here, that of the index before it is
        first used, that of the model before it is opened; `index.verify` checks everything.

        Args:
            path: the gallery folder.
            model_path: a model that must be the one the gallery was built with.
            threads: for one search and one model run; requests side by side want 1.

        Raises:
            GalleryError: it is missing, unfinished or damaged.
            GalleryMismatchError: `model_path` is another model.
        """
        root = find_version(path)
        manifest = Manifest.read(root)
        small = {name for name, file in manifest.files.items() if file["bytes"] <= _HASHED_ON_OPEN_BYTES}
        for name in manifest.files:
            check_file(root, name, manifest, contents=name in small)
        gallery = cls(path.resolve(), version=root.name, manifest=manifest, threads=threads)
        gallery._model_checked = MODEL_NAME in small
        gallery._check_rows()
        if model_path is not None:
            gallery._check_model(model_path)
        return gallery

    @property
    def embedder(self) -> Embedder:
        """The version's own model, opened at first use.

        Raises:
            GalleryError: the model file is damaged.
        """
        with self._lock:
            if self._embedder is None:
                path, sha256 = self._root / MODEL_NAME, self.manifest.model_sha256
                check_file(self._root, MODEL_NAME, self.manifest, contents=not self._model_checked)
                if self.manifest.files[MODEL_NAME]["sha256"] != sha256:
                    raise GalleryDamagedError(
                        printable_path(str(path)), "damaged: it is not the model that the manifest names"
                    )
                self._embedder = Embedder(path, threads=self._threads, sha256=sha256)
            return self._embedder

    def search(self, vector: Vectors, *, k: int, exclude_id: int | None = None) -> list[Hit]:
        """The k members most similar to a (D,) float32 unit vector, best first; ties go to the smaller id.

        Fewer are returned where the gallery holds fewer. `exclude_id` is never returned.

        Raises:
            InputError: k is below 1, or the vector has another width or is not finite.
        """
        dim = self.manifest.embedding_dim
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        if vector.shape != (dim,) or not np.isfinite(vector).all():
            raise InputError(f"a query must be {dim} finite numbers, got shape {vector.shape}")
        query = np.ascontiguousarray(vector, dtype=np.float32)
        candidates = self._find_candidates(query, count=min(self.count, k + (exclude_id is not None)))
        scores, ids = search(
            query[None],
            gather_rows(candidates, self.shards, embedding_dim=dim),
            k=min(k, len(candidates)),
            gallery_ids=candidates,
            query_ids=None if exclude_id is None else np.array([exclude_id], dtype=np.int64),
        )
        return self._describe_hits(scores[0], ids[0])

    def image(self, image_id: int) -> GalleryImage:
        """One member.

        Raises:
            InputError: no member has this id.
        """
        with read_catalog(self._root / CATALOG_NAME) as catalog:
            row = catalog.find([image_id]).get(image_id)
        if row is None:
            raise InputError(f"no image {image_id} in gallery {printable_path(self.name)}")
        return _member(row)

    def image_path(self, image_id: int) -> Path:
        """The source file of a member.

        Raises:
            InputError: no member has this id, or its file is gone.
            GalleryError: the recorded path leads out of the source folder.
        """
        relative = self.image(image_id).path
        if relative.startswith("/") or ".." in relative.split("/"):
            raise GalleryDamagedError(
                printable_path(str(self.path)), f"damaged: path {printable_path(relative)!r}"
            )
        path = self.folder / relative
        if not path.is_file():
            raise InputError(
                f"{printable_path(relative)}: the image is no longer in the gallery's source folder "
                f"{printable_path(str(self.folder))}; put it back, or build the gallery again"
            )
        return path

    def vector(self, image_id: int) -> Vectors:
        """The stored (D,) float32 unit vector of a member.

        Raises:
            InputError: no member has this id.
        """
        position = int(np.searchsorted(self.ids, image_id))
        if position >= self.count or self.ids[position] != image_id:
            raise InputError(f"no image {image_id} in gallery {printable_path(self.name)}")
        here = self.ids[position : position + 1]
        vectors = gather_rows(here, self.shards, embedding_dim=self.manifest.embedding_dim)
        return vectors.reshape(-1)

    def sample(self, count: int, *, seed: int) -> list[GalleryImage]:
        """Some different members in random order, the same for the same seed; all where there are fewer."""
        generator = np.random.default_rng(seed)
        chosen = generator.choice(self.count, size=min(count, self.count), replace=False)
        return self._members(self.ids[chosen].tolist())

    def labelled_vectors(self) -> tuple[Vectors, Labels, Ids, list[str]]:
        """What evaluation needs: (N, D) float32 vectors, (N,) int64 labels, (N,) int64 ids, label names.

        Labels are positions in the names, which are sorted; members without a label have `UNLABELLED`.
        """
        with read_catalog(self._root / CATALOG_NAME) as catalog:
            names_by_row = [row.label for row in catalog.rows(status="indexed")]
        names = sorted({name for name in names_by_row if name is not None})
        number = {name: position for position, name in enumerate(names)}
        labels = np.array([UNLABELLED if name is None else number[name] for name in names_by_row], dtype=np.int64)
        return np.concatenate([rows.vectors for rows in self.shards]), labels, self.ids, names

    def _check_rows(self) -> None:
        counted, dim = self.manifest.counts.get("indexed"), self.manifest.embedding_dim
        widths = {rows.vectors.shape[1:] for rows in self.shards}
        if counted != self.count or widths != {(dim,)} or (np.diff(self.ids) <= 0).any():
            seen = f"{self.count} vectors of shapes {sorted(widths)}"
            problem = f"damaged: {seen}, expected {counted} of width {dim} in rising id order"
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

    def _open_index(self) -> Any:
        with self._lock:
            if self._index is None:
                check_file(self._root, INDEX_NAME, self.manifest, contents=True)
                path = self._root / INDEX_NAME
                self._index = read_index(path, embedding_dim=self.manifest.embedding_dim, count=self.count)
            return self._index

    def _find_candidates(self, query: Vectors, *, count: int) -> Ids:
        """Ids of at least the `count` nearest and of all that may tie with the last of them."""
        index, wanted = self._open_index(), min(self.count, count + _SPARE_CANDIDATES)
        while True:
            scores, ids = search_index(index, query, k=wanted, threads=self._threads)
            if wanted == self.count or scores[-1] < scores[count - 1] - _SCORE_NOISE:
                return ids
            wanted = min(self.count, 4 * wanted)

    def _describe_hits(self, scores: Floats, ids: Ids) -> list[Hit]:
        found = ids != NO_ID
        members = self._members(ids[found].tolist())
        return [
            Hit(rank=rank, id=member.id, score=float(score), path=member.path, label=member.label)
            for rank, (member, score) in enumerate(zip(members, scores[found], strict=True), start=1)
        ]

    def _members(self, ids: Iterable[int]) -> list[GalleryImage]:
        wanted = list(ids)
        with read_catalog(self._root / CATALOG_NAME) as catalog:
            rows = catalog.find(wanted)
        if len(rows) != len(set(wanted)):
            raise GalleryDamagedError(
                printable_path(str(self._root / CATALOG_NAME)), "damaged: images without a row"
            )
        return [_member(rows[image_id]) for image_id in wanted]


def find_version(path: Path) -> Path:
    """The folder of a gallery's current version.

    Raises:
        GalleryError: there is none, or no gallery.
    """
    shown = printable_path(str(path))
    if not path.is_dir():
        raise GalleryError(shown, "no such gallery; make one with `retrieval index build MODEL FOLDER --out`")
    version = read_current(path)
    if version is None:
        if (path / "building").exists():
            raise GalleryError(shown, "its build has not finished; run the same build again")
        raise GalleryError(shown, "the folder is no gallery; make one with `retrieval index build`")
    return versions_folder(path) / version


def _member(row: CatalogRow) -> GalleryImage:
    return GalleryImage(id=row.id, path=row.path, label=row.label)
