"""The check behind /v1/ready: one search is tried, beside the queue of the others; its outcome is kept for a moment."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.query import QueryPart, SearchQuery
from retrieval_app.serving.searching import SearchTask, answer_searches

logger = logging.getLogger(__name__)
LONGEST_S = 10.0  # that a search for one image may take on a machine that is busy with others
KEPT_S = 1.0
_REST = 20  # times what a search took pass before the next: asking often costs no more than a twentieth of a core


@dataclass(eq=False, slots=True)
class _Trial:
    digest: str  # of the version, which is not to be held longer than its requests need it
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    outcome: Future[Exception | None] = field(default_factory=Future)

    def run(self, snapshot: Snapshot) -> None:
        """Search for one image of the gallery, and read its row."""
        try:
            first = int(snapshot.gallery.store.ids[0])
            vector = snapshot.gallery.vector(first)
            query = SearchQuery((QueryPart(vector=vector),), k=1)
            (answer,) = answer_searches([SearchTask(snapshot, query, (vector,))])
            error = answer if isinstance(answer, Exception) else None
            with snapshot.gallery.as_given.catalog() as catalog:  # the file itself, since rows are remembered
                if not catalog.find([first]):
                    error = NotReadyError(f"image {first} has no row")
        # Whatever it is, it is the answer to what was asked.
        except Exception as caught:  # noqa: BLE001
            error = caught
        self.ended = time.monotonic()
        self.outcome.set_result(error)

    def is_fresh(self, digest: str) -> bool:
        """Whether it tells enough of this version; one that hangs is not joined by others."""
        if self.ended is None:
            return True
        kept_s = max(KEPT_S, _REST * (self.ended - self.began))
        return self.digest == digest and time.monotonic() < self.ended + kept_s


class SearchProbe:
    """Tries searches, one at a time and for all who ask meanwhile. For one event loop."""

    def __init__(self, *, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._trial: _Trial | None = None
        self._told: str | None = None

    async def check(self, snapshot: Snapshot) -> None:
        """Return where a search of this version can be answered.

        Raises:
            NotReadyError: it fails, or takes too long.
        """
        trial, digest = self._trial, snapshot.gallery.digest
        if trial is None or not trial.is_fresh(digest):
            trial = self._trial = _Trial(digest)
            threading.Thread(target=trial.run, args=(snapshot,), name="probe", daemon=True).start()
        left_s = trial.began + self._longest_s - time.monotonic()
        await asyncio.wait([asyncio.wrap_future(trial.outcome)], timeout=max(left_s, 0.0))
        if not trial.outcome.done():
            self._fail(f"a search takes more than {self._longest_s:g} seconds")
        error = trial.outcome.result()
        if error is not None:
            self._fail(f"a search fails: {error or type(error).__name__}")
        self._told = None

    def _fail(self, reason: str) -> None:
        if reason != self._told:
            logger.error("not ready: %s", reason)
            self._told = reason
        raise NotReadyError(reason)
