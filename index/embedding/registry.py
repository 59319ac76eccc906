"""Every engine that embeds items, and the one way to get one."""

from __future__ import annotations

from index.embedding.engine import EmbeddingEngine
from index.embedding.threaded import ThreadedEngine
from index.limits import MAX_PIXELS
from index.model.embedder import Embedder
from index.threads import usable_cores

ENGINES: dict[str, type[EmbeddingEngine]] = {"threads": ThreadedEngine}
USUAL_ENGINE = "threads"


def open_engine(
    embedder: Embedder,
    *,
    workers: int = 0,
    batch_size: int = 0,
    max_pixels: int = MAX_PIXELS,
    name: str = USUAL_ENGINE,
) -> EmbeddingEngine:
    """An engine for a model; 0 workers are one for each usable core, a `batch_size` of 0 is the model's usual one."""
    return ENGINES[name](
        embedder,
        workers=workers or usable_cores(),
        batch_size=batch_size or embedder.usual_batch,
        max_pixels=max_pixels,
    )
