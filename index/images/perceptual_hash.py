"""A short fingerprint of what an image looks like, which saving it again hardly changes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from PIL import Image

from index.arrays import Ids
from index.images.preprocess import Pixels

_SIDE = 32  # of the grey image that is transformed
_FREQUENCIES = 8  # kept, the lowest of either direction
_DECIMALS = 6  # kept of a coefficient of grey values in 0..255: far above what the order of a sum changes


def perceptual_hash(pixels: Pixels) -> int:
    """The 64-bit DCT hash of (H, W, 3) uint8 pixels, as a signed integer.

    The grey image is reduced to 32 x 32 by area; of its two-dimensional cosine transform the 8 x 8 lowest
    frequencies are compared with their median, and the bits of those above it are read row by row, the highest
    first (the "pHash" of C. Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010).

    Half of the bits are set, so that two hashes differ in an even number of bits.

    An image of one colour has no frequency but the lowest: all such images have the same hash (black, which has not
    even that one, differs from them in one bit), so the hash says of them only that they are all flat.
    """
    grey = Image.fromarray(pixels).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    basis = _basis()
    lowest = (basis @ np.asarray(grey, dtype=np.float64) @ basis.T).round(_DECIMALS).ravel()
    ordered = np.sort(lowest)
    middle = len(ordered) // 2
    bits = lowest > (ordered[middle - 1] + ordered[middle]) / 2
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


def hamming_distances(hashes: Ids, others: Ids | int) -> npt.NDArray[np.uint8]:
    """In how many bits int64 hashes differ from others, or from one: uint8 of 0..64, in their broadcast shape."""
    different = np.bitwise_xor(hashes, np.asarray(others, dtype=np.int64))
    return np.bitwise_count(different.view(np.uint64))  # of signed numbers NumPy counts the bits of the amount


@functools.cache
def _basis() -> npt.NDArray[np.float64]:
    """(8, 32) float64: the orthonormal cosines of the lowest frequencies (DCT-II)."""
    frequency = np.arange(_FREQUENCIES)[:, None]
    cosines: npt.NDArray[np.float64] = np.cos(np.pi / _SIDE * (np.arange(_SIDE) + 0.5) * frequency) * np.sqrt(
        2 / _SIDE
    )
    cosines[0] /= np.sqrt(2)
    return cosines
