"""Counting what a model is given."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from index.images.preprocess import Pixels
from index.model.embedder import Embedder


@contextmanager
def count_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many images the model is given from now on, a number a batch."""
    seen: list[int] = []
    embed = Embedder.embed_padded

    def note(self: Embedder, pixels: Pixels, *, batch_size: int) -> np.ndarray:
        seen.append(len(pixels))
        return embed(self, pixels, batch_size=batch_size)

    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed_padded", note)
        yield seen
