"""SQLite table that the processes of a server share while it runs; in memory where there is one process."""

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WAIT_S = 10.0
_AGAIN_S = 0.01


class SharedTable:
    """A database that ends with its server, for any number of threads and processes.

    A killed process leaves whole what it has written. Nothing outlives the machine, so writes are not synced. The
    connection is closed when nothing refers to the object any more. `path` lies in a private folder; None is memory.
    """

    def __init__(self, path: Path | None, schema: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None, check_same_thread=False, timeout=_WAIT_S
        )
        weakref.finalize(self, self._connection.close)
        self._connection.execute("PRAGMA synchronous = OFF")
        end = time.monotonic() + _WAIT_S
        while not self._is_set_up(schema, is_last=time.monotonic() > end):
            time.sleep(_AGAIN_S)

    def _is_set_up(self, schema: str, *, is_last: bool) -> bool:
        """Make the tables; False where another process does so at this moment: SQLite does not wait for it."""
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")  # so that readers never wait
            self._connection.executescript(schema)
        except sqlite3.OperationalError as error:
            if is_last or not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                raise
            return False
        return True

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, to be used within the block."""
        with self._lock:
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction, which is committed at the end of the block and rolled back on an error."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # on a full disk it was undone already
                    self._connection.execute("ROLLBACK")
                raise
