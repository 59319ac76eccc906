"""Served gallery: its current version, replaced whole when a new one is published.

A request takes one `Snapshot` and uses it to its end, so that no answer mixes two versions. A replaced version is
closed when its last request is done.
"""

import logging
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from index.errors import GalleryError, RetrievalError
from index.gallery.gallery import Gallery
from index.model.embedder import Embedder
from index.versions.versions import find_version
from retrieval_app.insights.background import Insights
from retrieval_app.serving.errors import NotReadyError

logger = logging.getLogger(__name__)
CACHE_FOLDER = "insights"
_CALIBRATION_S = 30.0
_PAUSE_S = 10.0  # before a version that could not be opened is tried again: reading all of it takes long
_LOCK_WAIT_S = 0.1  # as long as others may take to write a decision
_DECISIONS_PAUSE_S = 0.25  # before decisions that could not be read are tried again
_PROBLEMS = (RetrievalError, OSError, MemoryError, RuntimeError)  # the last one is faiss's


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One opened version, whose embedder runs on one core; `wide_embedder` is the same model on all cores."""

    gallery: Gallery
    insights: Insights
    wide_embedder: Embedder

    def view(self, output: str) -> "Snapshot":
        """View of the version by another output of the model; an InputError where it has no such vectors."""
        gallery = self.gallery.view(output)
        return self if gallery is self.gallery else replace(self, gallery=gallery)

    @property
    def version(self) -> str:
        return self.gallery.version


class LiveGallery:
    """The newest intact version of a gallery.

    Attributes:
        problem: why the newest version is not served; None where it is.
        decisions_problem: why the newest label decisions are not shown; None where they are.
    """

    def __init__(self, path: Path, *, filter_s: float | None = None, shows_gps: bool = False) -> None:
        """Open the current version; filters take at most `filter_s`."""
        self.path, self._filter_s, self._shows_gps = path, filter_s, shows_gps
        self.problem: str | None = None
        self.decisions_problem: str | None = None
        self._replacing = threading.Lock()
        self._current = self._open()
        self._seen = self._current.gallery.digest
        self._again_at = 0.0
        self._decisions_again_at = 0.0
        self._refreshing = threading.Lock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def digest(self) -> str:
        """The checksum of the served version, also where it holds no image."""
        return self._current.gallery.digest

    @property
    def current(self) -> Snapshot:
        """The version that is served, with the label decisions that were read last; never waits."""
        snapshot = self._current
        if not len(snapshot.gallery.store.ids):
            raise NotReadyError(f"the gallery {snapshot.gallery.name} holds no image")
        return snapshot

    def has_newest_decisions(self) -> bool:
        """Whether `follow_decisions` has nothing to do; never waits."""
        if time.monotonic() < self._decisions_again_at:
            return True
        if not self._replacing.acquire(blocking=False):  # another thread reads them now
            return False
        try:
            return self._current.gallery.has_newest_decisions()
        finally:
            self._replacing.release()

    def follow_decisions(self) -> None:
        """Read the label decisions that hold now, or keep those of before; large changes take a while."""
        with self._replacing:
            if time.monotonic() < self._decisions_again_at:
                return
            snapshot = self._current
            try:
                gallery = snapshot.gallery.read_decisions(wait_s=_LOCK_WAIT_S)
            except GalleryError as error:
                if self.decisions_problem != str(error):
                    logger.error("the newest label decisions cannot be shown, those before go on: %s", error)
                self.decisions_problem = str(error)
                self._decisions_again_at = time.monotonic() + _DECISIONS_PAUSE_S
                return
            self.decisions_problem = None
            if gallery is not snapshot.gallery:
                self._current = replace(snapshot, gallery=gallery)
                snapshot.insights.follow(gallery)

    def watch(self, *, poll_s: float) -> None:
        self._watcher = threading.Thread(target=self._watch, args=(poll_s,), name="versions", daemon=True)
        self._watcher.start()

    def refresh(self) -> bool:
        """Serve the newest version; whether it replaced another. One that cannot be opened becomes the `problem`."""
        with self._refreshing:
            try:
                digest = find_version(self.path).manifest_sha256
                if digest == self._current.gallery.digest:
                    self._seen, self.problem = digest, None
                    return False
                if digest == self._seen and time.monotonic() < self._again_at:
                    return False
                self._seen = digest
                snapshot = self._open(before=self._current)
            except _PROBLEMS as error:
                self._again_at = time.monotonic() + _PAUSE_S
                if self.problem != str(error):
                    logger.error("the newest version cannot be served, the one before goes on: %s", error)
                self.problem = str(error)
                return False
            with self._replacing:
                before, self._current = self._current, snapshot
            self._seen, self.problem = snapshot.gallery.digest, None
        before.insights.close()
        logger.info("serving version %s", snapshot.version)
        return True

    def close(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        self._current.insights.close()

    def _watch(self, poll_s: float) -> None:
        while not self._stop.wait(poll_s):
            self.refresh()

    def _open(self, *, before: Snapshot | None = None) -> Snapshot:
        """The current version, searched once: so the first request is fast, and damage shows now."""
        embedder = None if before is None else before.gallery.embedder
        gallery = Gallery.open(self.path, embedder=embedder, filter_s=self._filter_s, shows_gps=self._shows_gps)
        if before is not None and gallery.embedder is embedder:
            wide = before.wide_embedder
        else:
            own = gallery.embedder
            wide = Embedder(own.path, sha256=own.sha256, backend=own.backend)
        if len(members := gallery.store.ids):
            gallery.search(gallery.vector(int(members[0])), k=1)
            side = gallery.embedder.contract.preprocess.crop
            for model in (gallery.embedder, wide):
                model.embed_batch(np.zeros((1, side, side, 3), dtype=np.uint8))
        insights = Insights(gallery, cache=gallery.path / CACHE_FOLDER)
        insights.get("calibration")  # which every search needs
        if before is not None:  # requests are still answered from the version before
            insights.wait("calibration", timeout=_CALIBRATION_S)
        return Snapshot(gallery, insights, wide)
