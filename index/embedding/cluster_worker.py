"""What runs on every machine of a cluster: a model, and items embedded to files of outcomes in a shared folder."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.embedding.engine import EmbeddedItem
from index.embedding.outcome_files import write_outcomes
from index.embedding.registry import open_engine
from index.embedding.vector_cache import describe_vectors
from index.errors import GalleryError, InputError, RetrievalError
from index.model.embedder import Embedder
from index.sources.items import Place
from index.sources.source import ImageSource
from index.text import printable_path


@dataclass(frozen=True, slots=True)
class ClusterWork:
    """What every worker is told.

    Attributes:
        folder: where the files of outcomes go; all machines share it.
        model: a file that all machines share, of the SHA-256 `model_sha256`.
        sources: that the items lie in.
        batch_size: 0 is the model's usual one.
        max_pixels: of an image.
        backend: the runtime.
    """

    folder: Path
    model: Path
    model_sha256: str
    sources: tuple[ImageSource, ...]
    batch_size: int
    max_pixels: int
    backend: str


class ClusterWorker:
    """A process on a machine of the cluster. Expected errors are handed back as values: they end the work."""

    def __init__(self, work: ClusterWork, *, threads: int) -> None:
        self._work, self._threads = work, threads
        self._embedder: Embedder | None = None

    def open(self) -> dict[str, Any] | RetrievalError:
        """Open the model; what a vector depends on here, as `describe_vectors` has it."""
        work = self._work
        try:
            if not work.model.is_file():
                shown = printable_path(str(work.model.parent))
                raise GalleryError(
                    shown, "not to be seen from there; name a folder that all machines share: --shards"
                )
            self._check_sources()
            embedder = Embedder(work.model, threads=1, sha256=work.model_sha256, backend=work.backend)
        except RetrievalError as error:
            return error
        self._embedder = embedder.giving(*embedder.contract.widths)
        return describe_vectors(
            self._embedder, batch_size=work.batch_size or embedder.usual_batch, max_pixels=work.max_pixels
        )

    def embed(self, keys: list[str], places: list[Place], made_by: str) -> str | RetrievalError:
        """Embed some items to a file of outcomes; its path."""
        assert self._embedder is not None, "opened before"
        work, outcomes = self._work, dict[int, EmbeddedItem]()
        engine = open_engine(
            self._embedder, workers=self._threads, batch_size=work.batch_size, max_pixels=work.max_pixels
        )
        try:
            with closing(engine.embed(enumerate(places))) as batches:
                for batch in batches:
                    outcomes |= {item.id: item for item in batch}
            if any(item.problem is not None for item in outcomes.values()):
                self._check_sources()  # where they are gone from here, nothing is wrong with the images
            items = [outcomes[number] for number in range(len(places))]
            return os.fspath(write_outcomes(work.folder, keys, items, made_by=made_by))
        except RetrievalError as error:
            return error
        except OSError as error:
            return GalleryError(printable_path(str(work.folder)), f"cannot be written from there: {error}")

    def _check_sources(self) -> None:
        for source in self._work.sources:
            if not source.is_there():
                shown = printable_path(source.location)
                raise InputError(f"{shown}: not to be seen from there; every machine needs it at this place")
