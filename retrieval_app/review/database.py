"""SQLite databases beside a gallery, for threads and processes; a write is on the disk when its call returns."""

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from index.errors import RetrievalError
from index.labels.decided_labels import identify_file
from index.labels.steps import FOREIGN_TABLES, VERSION, check_version
from index.text import printable_path

_WAIT_SECONDS = 10.0
_NO_RIGHT = "the gallery's folder cannot be written; give the server the right to write it"
_CANNOT_WRITE = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")


class ReviewError(RetrievalError):
    """A database that cannot be read or written; nothing was changed."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{printable_path(path)}: {problem}")
        self.path = path
        self.problem = problem


class DecidedSinceError(RetrievalError):
    """The decisions have changed since the client read them; another's decision would be overruled."""

    def __init__(self) -> None:
        super().__init__("another decision was made since, here or elsewhere, so nothing was done; look again")


class Database:
    """One connection under one lock, opened at first use.

    A committed transaction is on the disk: neither a killed process nor a power cut takes it back. The first one makes
    the file with the tables of `schema` and the permissions `mode`, before the umask.
    """

    def __init__(self, path: Path, schema: str, *, mode: int = 0o666) -> None:
        self.path, self._schema, self._mode = path, schema, mode
        self.opened: tuple[int, ...] | None = None  # device and inode of the file that is open
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """The connection for reading; None where nothing was ever written."""
        with self._lock, self._named_errors("cannot be read"):
            self._notice_removal()
            if self._connection is None and self.path.exists():
                self._connection = self._open("rw") or self._open("ro")
            connection = self._connection
            # A process that was killed before its first transaction leaves an empty file.
            yield connection if connection is not None and check_version(connection) else None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction, which is committed at the end of the block and rolled back on an error."""
        with self._lock, self._named_errors("cannot be written"):
            connection = self._begin()
            try:
                if check_version(connection) != VERSION:
                    for statement in self._schema.split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file until it is used again."""
        with self._lock:
            self._forget_connection()

    def _begin(self) -> sqlite3.Connection:
        """The connection, in a transaction of the file that has the path now."""
        self._notice_removal()
        if self._connection is None:
            try:
                self.path.parent.mkdir(exist_ok=True)
                if not self.path.exists():
                    self.path.touch(mode=self._mode)
            except OSError as error:
                raise ReviewError(self.path, f"cannot be written: {error.strerror}; {_NO_RIGHT}") from error
            self._connection = self._open("rwc")
        assert self._connection is not None
        self._connection.execute("BEGIN IMMEDIATE")
        if self.opened != identify_file(self.path):
            self._forget_connection()
            raise ReviewError(self.path, "the file was replaced in this moment; do it again")
        return self._connection

    def _notice_removal(self) -> None:
        """Close a file that was moved or replaced: writes would be lost."""
        if self._connection is not None and self.opened != identify_file(self.path):
            self._forget_connection()

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self, mode: str) -> sqlite3.Connection | None:
        """A connection in a mode of SQLite's; None where permissions forbid `rw`."""
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = None
        try:
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_WAIT_SECONDS
            )
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = EXTRA")  # the folder is synced too when the journal goes
            connection.execute("PRAGMA cache_spill = OFF")  # a spilled page locks readers out before the commit
            for name in re.findall(r"CREATE TABLE (\w+)", self._schema) if check_version(connection) else ():
                connection.execute(f"SELECT 1 FROM {name} LIMIT 0")  # a pre-release made fewer tables
            self.opened = identify_file(self.path)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if mode == "rw" and _code(error).startswith(_CANNOT_WRITE):
                return None
            raise
        weakref.finalize(self, connection.close)  # for who does not call `close`
        return connection

    @contextmanager
    def _named_errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ReviewError(self.path, f"{problem}: {error.strerror or error}; fix the cause") from error
        except sqlite3.Error as error:
            self._forget_connection()
            advice = "fix the cause and do it again"
            if _code(error).startswith(_CANNOT_WRITE):
                advice = _NO_RIGHT
            elif _code(error) == "SQLITE_ERROR":
                advice = FOREIGN_TABLES
            elif _code(error).startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                advice = "move the file away to begin anew, or put a copy of it back"
            raise ReviewError(self.path, f"{problem}: {error}; {advice}") from error


def _code(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or "SQLITE_UNKNOWN"
