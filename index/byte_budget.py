"""A bound on the bytes that threads hold at one time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ByteBudget:
    """Threads wait until what they are about to hold fits beside what others hold.

    Args:
        capacity_bytes: of all together; more than that has to be held alone.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes, self._held_bytes = capacity_bytes, 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        """Hold as many bytes for as long as the context lasts."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._held_bytes or self._held_bytes + size_bytes <= self._capacity_bytes
            )
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._held_bytes -= size_bytes
                self._changed.notify_all()
