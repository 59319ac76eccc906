"""What is said where a GPU's memory does not do for a network in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from index.errors import RunError


@contextmanager
def advising_on_gpu_memory() -> Iterator[None]:
    """Say which options take less.

    Raises:
        RunError: in the place of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).split(". ")[0]
        raise RunError(
            f"the GPU has no memory for a batch of the network ({said}): add --network-chunk 16, which gives the "
            "same gradients, or lower --network-batch-size or --network-crop; in a new --out"
        ) from error
