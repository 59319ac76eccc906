"""The perceptual hash: what it is, what it survives, and what it cannot tell apart."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from index.images.preprocess import hamming_distances, perceptual_hash
from tests.photos import read_photo

INT64 = st.integers(-(2**63), 2**63 - 1)


def photo(kind: str, *, seed: int = 0, size: int = 224) -> Image.Image:
    return read_photo(kind, seed, size=size)


def hash_image(image: Image.Image) -> int:
    return perceptual_hash(np.asarray(image.resize((224, 224))))


def distance(left: int, right: int) -> int:
    return int(hamming_distances(np.array([left]), right)[0])


@pytest.mark.parametrize("size", [32, 100, 224, 256])
def test_the_hash_is_the_classical_one(size: int) -> None:
    fft = pytest.importorskip("scipy.fft")
    image = photo("polo", size=size)
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    lowest = fft.dctn(grey, norm="ortho")[:8, :8]
    expected = "".join("1" if value > np.median(lowest) else "0" for value in lowest.ravel())
    assert f"{perceptual_hash(np.asarray(image)) % 2**64:064b}" == expected


def test_half_of_the_bits_are_set_and_the_number_has_a_sign() -> None:
    hashes = [hash_image(photo(kind)) for kind in ("polo", "lime", "skirt", "dress")]
    assert [(value % 2**64).bit_count() for value in hashes] == [32] * 4
    assert -(2**63) <= min(hashes) < 0


def test_a_picture_saved_again_keeps_its_hash_and_another_picture_has_another() -> None:
    image, file = photo("polo", size=300), io.BytesIO()
    image.resize((150, 150)).save(file, "JPEG", quality=50)
    assert distance(hash_image(image), hash_image(Image.open(file))) <= 4
    assert distance(hash_image(image), hash_image(photo("dress", size=300))) > 10


def test_images_of_one_colour_cannot_be_told_apart() -> None:
    hashes = [perceptual_hash(np.full((224, 224, 3), colour, np.uint8)) for colour in (1, 90, 255, (200, 10, 30))]
    assert set(hashes) == {-(2**63)}
    assert perceptual_hash(np.zeros((224, 224, 3), np.uint8)) == 0


@given(st.lists(INT64, max_size=20), INT64)
def test_the_distance_is_the_number_of_bits_that_differ(hashes: list[int], other: int) -> None:
    distances = hamming_distances(np.array(hashes, dtype=np.int64), other)
    assert distances.tolist() == [((value ^ other) % 2**64).bit_count() for value in hashes]
