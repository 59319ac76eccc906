"""The photos that can be asked with again, of whichever process of a server took them: the most recently used ones."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from retrieval_app.serving.photos import Photo
from retrieval_app.serving.shared_table import SharedTable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS photos (
    token TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    picture BLOB NOT NULL,
    vector BLOB NOT NULL,
    model_sha256 TEXT NOT NULL,
    used_at INTEGER NOT NULL                   -- nanoseconds of the machine's monotonic clock
) WITHOUT ROWID;
"""
_FORGET = """
DELETE FROM photos WHERE token IN (
    SELECT token FROM (
        SELECT token, sum(length(picture) + length(vector)) OVER (ORDER BY used_at DESC, token) AS bytes FROM photos
    ) WHERE bytes > ?
)
"""


class KeptPhotos:
    """Photos by their tokens; safe among threads, and among processes where there is a file.

    Args:
        capacity_bytes: of all pictures and vectors together.
        path: the file; None keeps them in this process's memory.
        noted_s: a use is noted where the last one is so many seconds ago; writing may have to wait for others.
    """

    def __init__(self, capacity_bytes: int, *, path: Path | None = None, noted_s: float = 10.0) -> None:
        self._capacity_bytes, self._noted_s = capacity_bytes, noted_s
        self._table = SharedTable(path, _SCHEMA)

    def __len__(self) -> int:
        with self._table.reading() as table:
            return int(table.execute("SELECT count(*) FROM photos").fetchone()[0])

    def put(self, photo: Photo) -> None:
        """Keep a photo, and forget those that have not been used for longest."""
        values = (
            photo.token, photo.name, photo.width, photo.height, photo.picture, photo.vector.tobytes(),
            photo.model_sha256, time.monotonic_ns(),
        )  # fmt: skip
        with self._table.writing() as table:
            table.execute("INSERT INTO photos VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            table.execute(_FORGET, (self._capacity_bytes,))

    def get(self, token: str) -> Photo | None:
        """The photo of a token, which is the most recently used one now; None where it is not kept."""
        with self._table.reading() as table:
            found = table.execute("SELECT * FROM photos WHERE token = ?", (token,)).fetchone()
        if found is None:
            return None
        _, name, width, height, picture, vector, model_sha256, used_at = found
        if time.monotonic_ns() - used_at > self._noted_s * 1e9:
            with self._table.writing() as table:
                table.execute("UPDATE photos SET used_at = ? WHERE token = ?", (time.monotonic_ns(), token))
        return Photo(token, name, width, height, picture, np.frombuffer(vector, dtype=np.float32), model_sha256)
