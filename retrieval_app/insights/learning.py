"""What people decide about labels teaches the judge: those that nobody has decided are ranked anew, in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeAlias

from index.errors import RetrievalError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision, LabelKey
from index.labels.doubts import Doubts, collect_doubts
from index.labels.suspicion import Chances
from index.text import printable_path
from index.threads import multiplying_workers
from retrieval_app.insights.duplicate_groups import DuplicateGroups
from retrieval_app.insights.gallery_doubts import rank_anew

logger = logging.getLogger(__name__)

Decisions: TypeAlias = Mapping[LabelKey, LabelDecision]
"""Those that hold."""
FindIds: TypeAlias = Callable[[], Mapping[int, LabelKey]]
"""Gives the images that decisions are about, by id; several may be one file."""
FindDuplicates: TypeAlias = Callable[[], DuplicateGroups | None]
"""Gives the groups of duplicates, and may wait for them; None where there are none to be had."""
REST = 3.0  # times as long as a ranking took, before the next: a quarter of a core at most


@dataclass(frozen=True, slots=True)
class Learnt:
    """A list of doubts, and how many decisions it has learnt from."""

    doubts: Doubts
    decisions: int = 0


class Learning:
    """The doubts of one version, ranked anew in a thread of its own as decisions are made; safe among threads.

    Args:
        gallery: the version.
        rest: times as long as a ranking took, before the next one.
    """

    def __init__(self, gallery: Gallery, *, rest: float = REST) -> None:
        self._gallery, self._rest = gallery, rest
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._closed = False
        self._rest_until = 0.0
        self._seen: Decisions = {}  # that the last ranking has learnt from, or tried to
        self._learnt: Learnt | None = None
        self._before: Chances | None = None

    def latest(self, base: Doubts) -> Learnt:
        """The list as it is now: `base` until something was learnt."""
        with self._lock:
            return self._learnt or Learnt(base)

    def after(
        self, base: Doubts, decisions: Decisions, *, find_ids: FindIds, duplicates: FindDuplicates
    ) -> Learnt:
        """As `latest`; where the decisions are others than those it has learnt from, it begins to learn from them.

        Args:
            base: the doubts before anybody had decided.
            decisions: that hold.
            find_ids: gives the images that they are about.
            duplicates: gives the groups of the version's duplicates. (Kept, it would keep a version alive that is no
                longer served, if its owner keeps this.)
        """
        with self._lock:
            if not decisions:
                self._seen, self._learnt = decisions, None
                return Learnt(base)
            is_new = self._seen is not decisions and dict(self._seen) != dict(decisions)
            if is_new and self._worker is None and not self._closed and monotonic() >= self._rest_until:
                self._seen = decisions
                self._worker = threading.Thread(
                    target=self._work, args=(base, decisions, find_ids, duplicates), name="learning", daemon=True
                )
                self._worker.start()
            return self._learnt or Learnt(base)

    def wait(self, *, timeout: float | None = None) -> None:
        """Return when nothing is being ranked, or `timeout` seconds have passed."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout)

    def close(self) -> None:
        """Stop at the next report of progress; does not wait."""
        self._closed = True

    def _work(self, base: Doubts, decisions: Decisions, find_ids: FindIds, duplicates: FindDuplicates) -> None:
        began = monotonic()
        learnt = None
        try:
            with multiplying_workers():  # the server's own threads want the other cores
                learnt = self._learn(base, decisions, find_ids(), duplicates())
        except _ClosedError:
            pass
        except (RetrievalError, OSError, MemoryError) as error:
            shown = printable_path(self._gallery.name)
            logger.warning("%s: labels are not ranked anew: %s", shown, str(error) or type(error).__name__)
        finally:
            with self._lock:
                self._learnt = learnt or self._learnt
                self._rest_until = monotonic() + self._rest * (monotonic() - began)
                self._worker = None

    def _learn(
        self,
        base: Doubts,
        decisions: Decisions,
        ids: Mapping[int, LabelKey],
        duplicates: DuplicateGroups | None,
    ) -> Learnt | None:
        if duplicates is None:
            return None
        decided = {image_id: decisions[key].label_after for image_id, key in ids.items()}
        found, self._before = rank_anew(
            self._gallery, decided, before=self._before, duplicates=duplicates, progress=self._look
        )
        # What was decided stays listed with the doubt that it was decided for.
        kept = [doubt for doubt in base.items if doubt.id in decided]
        items = sorted([*kept, *found.items], key=lambda doubt: -doubt.wrong)
        # What is left counts as no more than before: decisions never raise the estimate.
        wrong = sum(doubt.wrong for doubt in kept) + found.wrong_share * found.judged
        wrong = min(wrong, base.wrong_share * base.judged)
        learnt = collect_doubts(items, judged=base.judged, wrong=wrong, mixed=found.mixed)
        return Learnt(replace(learnt, is_lower_bound=base.is_lower_bound), len(decisions))

    def _look(self, done: int, total: int) -> None:
        if self._closed:
            raise _ClosedError


class _ClosedError(Exception):
    """Nobody wants the list any more."""
