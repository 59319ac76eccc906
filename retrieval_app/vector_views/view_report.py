"""What was written of a gallery for a program that shows embeddings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ViewReport:
    """`images` members of `embedding_dim` numbers in the `files`, `pictures` of them with a thumbnail."""

    gallery: str
    version: str
    images: int
    embedding_dim: int
    pictures: int
    files: list[str]

    def to_json(self) -> dict[str, Any]:
        """The document that the command prints with `--json`."""
        return asdict(self)
