"""The links of a gallery's duplicates."""

from __future__ import annotations

import numpy as np
import pytest

from index.duplicate_config import DuplicateConfig
from index.errors import GalleryDamagedError
from index.repetitions import Fingerprint, Repetition, find_repetitions
from index.vectors import VectorRows

DIM = 3


def shard(ids: list[int], vectors: list[list[float]]) -> VectorRows:
    return VectorRows(np.array(ids, dtype=np.int64), np.array(vectors, dtype=np.float32))


ALIKE, OTHER = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]


def test_a_gallery_is_grouped_around_its_first_images() -> None:
    """1 and 4 are one file, 3 looks like them; 5 and 6 were set aside for 3 and 2, 7 for 2 with the bytes of 6."""
    images = [
        Fingerprint(1, "a", 0),
        Fingerprint(2, "b", 0),
        Fingerprint(3, "c", 3),
        Fingerprint(4, "a", 0),
        Fingerprint(5, "d", 1, keeper=3),
        Fingerprint(6, "e", None, keeper=2),
        Fingerprint(7, "e", None, keeper=2),
    ]
    shards = [shard([1, 2], [ALIKE, OTHER]), shard([3, 4], [[0.96, 0.28, 0.0], ALIKE])]
    seen: list[tuple[int, int]] = []
    found = find_repetitions(
        images, shards, embedding_dim=DIM, config=DuplicateConfig(), progress=lambda *done: seen.append(done)
    )
    assert found == [
        Repetition(3, keeper=1, similarity=pytest.approx(0.96), hash_distance=2, same_bytes=False),
        Repetition(4, keeper=1, similarity=1.0, hash_distance=0, same_bytes=True),
        Repetition(5, keeper=1, similarity=None, hash_distance=1, same_bytes=False),
        Repetition(6, keeper=2, similarity=None, hash_distance=None, same_bytes=False),
        Repetition(7, keeper=2, similarity=None, hash_distance=None, same_bytes=False),
    ]
    assert seen == [(3, 3)]
    exact = find_repetitions(images, shards, embedding_dim=DIM, config=None)
    assert [(one.id, one.keeper, one.same_bytes) for one in exact] == [(4, 1, True), (7, 6, True)]


def test_equal_files_stay_together_whatever_their_vectors_and_an_indexed_one_keeps_them() -> None:
    images = [
        Fingerprint(1, "a", 0, keeper=3),
        Fingerprint(3, "a", 0),
        Fingerprint(4, "a", None),
        Fingerprint(5, "b", None),
    ]
    shards = [shard([3, 4, 5], [ALIKE, OTHER, ALIKE])]
    for config in (None, DuplicateConfig()):
        found = find_repetitions(images, shards, embedding_dim=DIM, config=config)
        assert [(one.id, one.keeper, one.same_bytes) for one in found] == [(1, 3, True), (4, 3, True)]
        assert found[1].similarity == 0.0


def test_a_labelled_image_is_kept_before_one_without_a_label() -> None:
    images = [Fingerprint(1, "a", 0, labelled=False), Fingerprint(2, "a", 0), Fingerprint(3, "b", 0)]
    shards = [shard([1, 2, 3], [ALIKE, ALIKE, ALIKE])]
    for config, expected in ((None, [(1, 2)]), (DuplicateConfig(), [(1, 2), (3, 2)])):
        found = find_repetitions(images, shards, embedding_dim=DIM, config=config)
        assert [(one.id, one.keeper) for one in found] == expected


def test_an_indexed_image_without_a_vector_is_damage() -> None:
    with pytest.raises(GalleryDamagedError, match="image 2 has no vector"):
        find_repetitions(
            [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0)], [shard([1], [ALIKE])], embedding_dim=DIM,
            config=DuplicateConfig(),
        )  # fmt: skip


@pytest.mark.parametrize("config", [None, DuplicateConfig()])
@pytest.mark.parametrize("others", [[], [Fingerprint(3, "c", 0, keeper=1)]])
def test_an_image_set_aside_for_one_that_is_not_indexed_is_damage(
    config: DuplicateConfig | None, others: list[Fingerprint]
) -> None:
    images = [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0, keeper=3), *others]
    with pytest.raises(
        GalleryDamagedError, match=r"image 2 was set aside for image 3, .*`retrieval index verify`"
    ):
        find_repetitions(images, [shard([1], [ALIKE])], embedding_dim=DIM, config=config)
