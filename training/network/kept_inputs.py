"""What a tail takes of every image, computed once and kept in a file that is mapped into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from index.errors import InputError
from index.progress import Progress, no_progress
from training.network.mapped_files import MappedArray
from training.network.tail import Tail

CHUNK = 32  # images at a time; kernels differ by batch size in their last bits, so it is part of what a file holds
KEPT_VERSION = 3  # raise it when what is kept, or how it is drawn, changes

Prepare = Callable[[npt.NDArray[np.int64], int], Tensor]
"""Called with (n,) places of images and the number of their chunk; gives (n, 3, side, side) images for the network."""


@dataclass(frozen=True, slots=True)
class KeptInputs:
    """Of N images in V views each.

    Attributes:
        tail: what takes them.
        array: (V N, *tail.shape) float16, view after view.
        rows: (N,) int64 rising, the run's numbers of the images.
    """

    tail: Tail
    array: MappedArray
    rows: npt.NDArray[np.int64]

    @classmethod
    def plan(
        cls, tail: Tail, rows: npt.NDArray[np.int64], *, hashes: Sequence[str], views: int, how: Mapping[str, Any],
        cache: Path,
    ) -> KeptInputs:  # fmt: skip
        """Where they will lie; runs with the same weights, images and views share the file.

        Args:
            hashes: of the images `rows`, in their order.
            how: all else that they depend on, as JSON.
        """
        known = {**how, "chunk": CHUNK, "version": KEPT_VERSION, "scale": tail.scale, "torch": torch.__version__}
        digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
        for sha256 in hashes:
            digest.update(sha256.encode())
        file = cache / "inputs" / f"{views}-{digest.hexdigest()[:16]}.inputs"
        return cls(tail, MappedArray(file, (views * len(rows), *tail.shape), "float16"), rows)

    @property
    def views(self) -> int:
        """V"""
        return self.array.shape[0] // len(self.rows)

    def fill(self, prepare: Prepare, *, dtype: torch.dtype, progress: Progress = no_progress) -> None:
        """Run the front of the network on all images; what an interrupted call has done is not done again.

        Args:
            prepare: its images depend on its arguments alone.
            dtype: of the pass, in autocast where it is not float32.
            progress: called with (views done, views).

        Raises:
            InputError: the cache folder cannot be written.
        """

        def produce(done: int) -> Iterator[npt.NDArray[np.float16]]:
            for start in range(done, self.array.shape[0], CHUNK):
                places = np.arange(start, min(start + CHUNK, self.array.shape[0])) % len(self.rows)
                yield self._keep(prepare(self.rows[places], start // CHUNK), dtype)

        try:
            self.array.fill(produce, progress=progress)
        except OSError as error:
            raise InputError(
                f"{self.array.file}: inputs of the blocks that train cannot be written ({error}); free space or "
                "choose another --cache"
            ) from error

    def take(self, opened: npt.NDArray[Any], rows: npt.NDArray[np.int64], *, view: int) -> Tensor:
        """(B, *shape) float16 of a view, 0..V-1, of the images `rows`.

        Args:
            opened: the array as it is open.
        """
        places = np.searchsorted(self.rows, rows) + view * len(self.rows)
        return torch.from_numpy(opened[places])

    @torch.inference_mode()
    def _keep(self, images: Tensor, dtype: torch.dtype) -> npt.NDArray[np.float16]:
        with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
            return self.tail.keep(images).cpu().numpy()
