"""Backbone features on disk, keyed by file content; one folder a (weights, transform) key, shared by runs.

A folder holds pairs of files: `<name>.npy`, (n, V, F) float32, and `<name>.json`, the n SHA-256 of the images. A
pair counts once its `.json` stands, which is written last, so a killed writer leaves nothing half-read and several
writers may share a folder.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.durable import replacing, write_durably
from index.errors import InputError

Features = npt.NDArray[np.float32]


class FeatureStore:
    """Features of images by content hash.

    Args:
        folder: of this key; made if missing.
        description: what the features are, written beside them for people.

    Raises:
        InputError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, description: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / "description.txt", json.dumps(description, indent=2).encode())
        except OSError as error:
            raise InputError(
                f"{folder}: the feature cache cannot be written ({error}); choose another --cache"
            ) from error
        self._rows: dict[str, tuple[str, int]] = {}
        self.read_again()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._rows

    def read_again(self) -> None:
        """See what other writers have added too."""
        known = {name for name, _ in self._rows.values()}
        for listing in sorted(self.folder.glob("*.json")):
            if listing.stem not in known and listing.with_suffix(".npy").exists():
                self._note(listing.stem, _read_listing(listing))

    def _note(self, name: str, hashes: Sequence[str]) -> None:
        self._rows.update({sha256: (name, row) for row, sha256 in enumerate(hashes)})

    def add(self, hashes: Sequence[str], features: Features) -> None:
        """Store (n, V, F) features of n images, atomically.

        Raises:
            InputError: they cannot be written.
        """
        name = uuid.uuid4().hex
        try:
            with replacing(self.folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, features, allow_pickle=False)
            write_durably(self.folder / f"{name}.json", json.dumps(list(hashes)).encode())
        except OSError as error:
            raise InputError(
                f"{self.folder}: the feature cache cannot be written ({error}); free space or choose another --cache"
            ) from error
        self._note(name, hashes)

    def load(self, hashes: Sequence[str]) -> Features:
        """(N, V, F) float32 of images that are all stored."""
        by_file: dict[str, list[tuple[int, int]]] = {}
        for position, sha256 in enumerate(hashes):
            name, row = self._rows[sha256]
            by_file.setdefault(name, []).append((position, row))
        result: Features | None = None
        for name, pairs in by_file.items():
            stored = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if result is None:
                result = np.empty((len(hashes), *stored.shape[1:]), dtype=np.float32)
            positions, rows = zip(*pairs, strict=True)
            result[list(positions)] = stored[list(rows)]
        if result is None:
            raise ValueError("no features asked for")
        return result


def _read_listing(path: Path) -> list[str]:
    try:
        hashes = json.loads(path.read_text(encoding="ascii"))
    except ValueError as error:
        raise InputError(
            f"{path}: the feature cache is damaged ({error}); delete this file and run again"
        ) from error
    if not isinstance(hashes, list):
        raise InputError(f"{path}: the feature cache is damaged (no list); delete this file and run again")
    return hashes
