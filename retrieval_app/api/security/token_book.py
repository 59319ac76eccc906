"""The tokens that a server accepts, as their file has them now: what is revoked opens nothing a second later.

A file that is missing, damaged or open to others opens nothing at all until it is mended; the log says so.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from index.errors import InputError
from retrieval_app.api.security.token_entries import TokenEntries, TokenEntry
from retrieval_app.api.security.token_file import read_token_entries

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at the file


class TokenBook:
    """Tokens of a file; used by the event loop alone.

    Args:
        file: made by `retrieval tokens add`.
        clock: of seconds.

    Raises:
        InputError: it cannot be used.
    """

    def __init__(self, file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._state = self._look()
        self._entries: TokenEntries | None = read_token_entries(file)
        self._looked_at = clock()

    def find(self, token: str) -> TokenEntry | None:
        """What is known of a token; None of one that opens nothing."""
        entries = self._current()
        return None if entries is None else self._find_hash(entries, entries.hash(token))

    def find_again(self, sha256: str) -> TokenEntry | None:
        """What is known now of a token that was found before; None where it opens nothing any more."""
        entries = self._current()
        return None if entries is None else self._find_hash(entries, sha256)

    def warn_of_others(self, galleries: Collection[str]) -> None:
        """Log the galleries in which tokens have rights, and that are none of the server's: names may be mistyped."""
        entries = self._current()
        rights = () if entries is None else (right for entry in entries.entries for right in entry.may)
        for name in sorted({right.partition(":")[2] for right in rights if ":" in right} - {*galleries}):
            logger.warning(
                "tokens have rights in a gallery %s, which this server does not have by that name", name
            )

    def _find_hash(self, entries: TokenEntries, sha256: str) -> TokenEntry | None:
        """All are compared, in a time that does not tell how much of one is right."""
        found = None
        for entry in entries.entries:
            if hmac.compare_digest(entry.sha256, sha256):
                found = entry
        return None if found is None or found.is_over() else found

    def _current(self) -> TokenEntries | None:
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return self._entries
        self._looked_at, state = now, self._look()
        if state == self._state:
            return self._entries
        was_sound, self._state = self._entries is not None, state
        try:
            self._entries = read_token_entries(self._file)
            if not was_sound:
                logger.warning("the file of tokens can be read again")
        except InputError as error:
            self._entries = None
            logger.error("no token opens anything: %s", error)
        return self._entries

    def _look(self) -> tuple[int, ...] | None:
        """What tells a file from the one before; None where there is none."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
