"""The links of a gallery's duplicates."""

import numpy as np
import pytest

from index.duplicates.duplicate_config import DuplicateConfig
from index.duplicates.near_duplicates import Fingerprint, ReadVectors, find_gallery_duplicates
from index.errors import GalleryDamagedError
from index.vectors.shards import VectorRows, gather_rows

DIM = 3


def reader(ids: list[int], vectors: list[list[float]]) -> ReadVectors:
    rows = [VectorRows(np.array(ids, dtype=np.int64), np.array(vectors, dtype=np.float32))]
    return lambda wanted: gather_rows(wanted, rows, embedding_dim=DIM)


ALIKE, OTHER = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]


def test_a_gallery_is_grouped_around_its_first_images() -> None:
    """1 and 4 are one file, 3 looks like them; 5 and 6 were left out for 3 and 2, 7 for 2 with the bytes of 6."""
    images = [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0), Fingerprint(3, "c", 3), Fingerprint(4, "a", 0)]
    images += [Fingerprint(5, "d", 1, kept_id=3), *(Fingerprint(number, "e", None, kept_id=2) for number in (6, 7))]
    read = reader([1, 2, 3, 4], [ALIKE, OTHER, [0.96, 0.28, 0.0], ALIKE])
    found = find_gallery_duplicates(images, read, config=DuplicateConfig())
    assert found == {3: 1, 4: 1, 5: 1, 6: 2, 7: 2}
    assert find_gallery_duplicates(images, read, config=None) == {4: 1, 7: 6}


def test_equal_files_stay_together_whatever_their_vectors_and_an_indexed_one_keeps_them() -> None:
    images = [Fingerprint(1, "a", 0, kept_id=3), Fingerprint(3, "a", 0)]
    images += [Fingerprint(4, "a", None), Fingerprint(5, "b", None)]
    read = reader([3, 4, 5], [ALIKE, OTHER, ALIKE])
    for config in (None, DuplicateConfig()):
        assert find_gallery_duplicates(images, read, config=config) == {1: 3, 4: 3}


def test_a_labelled_image_is_kept_before_one_without_a_label() -> None:
    images = [Fingerprint(1, "a", 0, labelled=False), Fingerprint(2, "a", 0), Fingerprint(3, "b", 0)]
    read = reader([1, 2, 3], [ALIKE, ALIKE, ALIKE])
    for config, expected in ((None, {1: 2}), (DuplicateConfig(), {1: 2, 3: 2})):
        assert find_gallery_duplicates(images, read, config=config) == expected


def test_an_image_without_a_vector_or_set_aside_for_one_that_is_not_indexed_is_damage() -> None:
    with pytest.raises(GalleryDamagedError, match="image 2 has no vector"):
        find_gallery_duplicates(
            [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0)], reader([1], [ALIKE]), config=DuplicateConfig()
        )

    for config in (None, DuplicateConfig()):
        for others in ([], [Fingerprint(3, "c", 0, kept_id=1)]):
            images = [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0, kept_id=3), *others]
            with pytest.raises(GalleryDamagedError, match=r"2 was left out for image 3, .*`retrieval index verify`"):
                find_gallery_duplicates(images, reader([1], [ALIKE]), config=config)
