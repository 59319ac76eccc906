"""`EmbeddingEngine`: what embeds items. A new engine is one class in a file, and its line in the registry.

Every exception is an outcome: an item that cannot be used comes back with its problem, and only a failing model stops
the work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from index.arrays import Vectors
from index.errors import ImageError
from index.model.embedder import Embedder
from index.network.remote_store import RemoteFile
from index.sources.items import Place


@dataclass(frozen=True, slots=True)
class EmbeddedItem:
    """One item's outcome: a (D,) float32 unit `vector` or the `problem` it has, and hashes as far as it was read.

    `fetched` is what the store of a remote file said of it when it was fetched.
    """

    id: int
    vector: Vectors | None = None
    sha256: str | None = None
    phash: int | None = None
    problem: ImageError | None = None
    fetched: RemoteFile | None = None


class EmbeddingEngine(Protocol):
    """Embeds any number of items in bounded memory."""

    def __init__(self, embedder: Embedder, *, workers: int, batch_size: int, max_pixels: int) -> None:
        """Make an engine.

        Args:
            embedder: the model; on a CPU one of a single thread.
            workers: how many decode at the same time.
            batch_size: images that the model takes at once.
            max_pixels: of an image; one that has more is not used.
        """

    def embed(self, items: Iterable[tuple[int, Place]]) -> Generator[list[EmbeddedItem], None, None]:
        """Embed items given as (id, place): the outcome of every one, once, in any order, some at a time.

        An item's vector does not depend on its neighbours. Closing the generator ends the work.

        Raises:
            ModelFileError: the model fails on a batch.
        """


def in_order(batches: Iterable[list[EmbeddedItem]], ids: Iterable[int]) -> Iterator[EmbeddedItem]:
    """Outcomes in the order of ids, each as soon as those before it are there."""
    done: dict[int, EmbeddedItem] = {}
    wanted = iter(ids)
    following = next(wanted, None)
    for batch in batches:
        done |= {item.id: item for item in batch}
        while following in done:
            yield done.pop(following)
            following = next(wanted, None)
