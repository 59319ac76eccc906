"""A hit: one result of a search."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.catalog.rows import read_metadata
from index.text import valid_text


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: a member of the gallery, with its rank from 1 and its cosine similarity as `score`.

    Attributes:
        path: below its source's root, undecodable bytes as surrogates.
        label: the one that holds; `given_label` is what the source or label file gave.
        source: that root, undecodable bytes shown as escapes.
    """

    rank: int
    id: int
    score: float
    path: str
    label: str | None
    source: str
    metadata_json: str | None = None
    given_label: str | None = None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The member's metadata, JSON values by name; empty without."""
        return read_metadata(self.metadata_json)

    @property
    def location(self) -> str:
        """The path with its source's root before it."""
        return os.path.join(self.source, self.path)

    @property
    def former_label(self) -> str | None:
        """The given label where another one was decided; else None."""
        return self.given_label if self.given_label != self.label else None

    def to_json(self) -> dict[str, Any]:
        """The result as `search --json` prints it; undecodable bytes of the path are shown as escapes.

        `given_label` is there only where it is another one than `label`.
        """
        return {
            "rank": self.rank,
            "id": self.id,
            "score": self.score,
            "path": valid_text(self.path),
            "source": self.source,
            "label": self.label,
            **({} if self.given_label == self.label else {"given_label": self.given_label}),
            "metadata": self.metadata,
        }
