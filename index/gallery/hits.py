"""The two answers of a gallery about an image: a member, and a hit of a search."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.catalog.row_metadata import read_metadata
from index.text import valid_text


@dataclass(frozen=True, slots=True)
class GalleryImage:
    """A member: its id, its path below its source's root (undecodable bytes as surrogates), its label and that root.

    Undecodable bytes of `source`, the root, are shown as escapes.
    """

    id: int
    path: str
    label: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: `rank` counts from 1, `score` is the cosine similarity; the rest is as in `GalleryImage`."""

    rank: int
    id: int
    score: float
    path: str
    label: str | None
    source: str
    metadata_json: str | None = None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The member's metadata, JSON values by name; empty without."""
        return read_metadata(self.metadata_json)

    @property
    def location(self) -> str:
        """The path with its source's root before it."""
        return os.path.join(self.source, self.path)

    def to_json(self) -> dict[str, Any]:
        """The result as `search --json` prints it; undecodable bytes of the path are shown as escapes."""
        return {
            "rank": self.rank,
            "id": self.id,
            "score": self.score,
            "path": valid_text(self.path),
            "source": self.source,
            "label": self.label,
            "metadata": self.metadata,
        }
