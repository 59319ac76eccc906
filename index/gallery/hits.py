"""A hit: one result of a search."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.catalog.rows import CatalogRow
from index.text import valid_text


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: a member of the gallery, with its rank from 1 and its cosine similarity as `score`.

    Attributes:
        row: of the catalogue; None in a search without rows.
        source: the root of the member's source, undecodable bytes shown as escapes.
        duplicates: (id, score) of some of the `duplicates_count` near-duplicates that the search
            collapsed into this one.
    """

    rank: int
    id: int
    score: float
    row: CatalogRow | None = None
    source: str = ""
    duplicates: tuple[tuple[int, float], ...] = ()
    duplicates_count: int = 0

    @property
    def _row(self) -> CatalogRow:
        if self.row is None:
            raise ValueError("this search returned ids and scores, without rows of the catalogue")
        return self.row

    @property
    def path(self) -> str:
        """The path below its source's root, undecodable bytes as surrogates."""
        return self._row.path

    @property
    def label(self) -> str | None:
        """The current label; `given_label` is what the source or label file gave."""
        return self._row.label

    @property
    def given_label(self) -> str | None:
        return self._row.given_label

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The member's metadata, JSON values by name; empty without."""
        return self._row.metadata

    @property
    def location(self) -> str:
        """The path with its source's root before it."""
        return os.path.join(self.source, self.path)

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
