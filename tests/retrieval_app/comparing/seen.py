"""Counting what models are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from index.images.preprocess import Pixels
from index.model.embedder import Embedder


@contextmanager
def count_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many images each model file is given from now on, by its SHA-256."""
    seen: Counter[str] = Counter()
    embed = Embedder.embed_padded

    def note(self: Embedder, pixels: Pixels, *, batch_size: int) -> np.ndarray:
        seen[self.sha256] += len(pixels)
        return embed(self, pixels, batch_size=batch_size)

    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed_padded", note)
        yield seen
