"""Keepers against a plain loop, and the links of a gallery's duplicates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index import near_duplicates
from index.duplicate_config import DuplicateConfig
from index.errors import GalleryDamagedError, InputError
from index.near_duplicates import Fingerprint, Keepers, Repetition, find_repetitions
from index.vectors import VectorRows

DIM = 3
Image = tuple[int, np.ndarray, int]


def similarity(left: np.ndarray, right: np.ndarray) -> np.float32:
    return np.float32(np.dot(left.astype(np.float64), right.astype(np.float64)))


def assign_one_by_one(keepers: list[Image], stream: list[Image], config: DuplicateConfig) -> list[int]:
    """The rule as it is written, one image and one keeper at a time."""
    keepers, found = list(keepers), []
    for number, vector, phash in stream:
        repeated = [
            (-similarity(vector, other), keeper)
            for keeper, other, other_hash in keepers
            if similarity(vector, other) >= np.float32(config.min_similarity)
            and ((phash ^ other_hash) % 2**64).bit_count() <= config.max_hash_distance
        ]
        if repeated:
            found.append(min(repeated)[1])
        else:
            keepers.append((number, vector, phash))
            found.append(number)
    return found


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Image], int, list[int], DuplicateConfig]:
    """Images of few directions and hashes, so that there is much to find; how many are held, where cuts are."""
    count = draw(st.integers(0, 40))
    directions = draw(st.lists(st.tuples(*[st.integers(-2, 2)] * DIM).filter(any), min_size=count, max_size=count))
    hashes = draw(st.lists(st.sampled_from([0, 1, 3, 7, -1, -2, -(2**63)]), min_size=count, max_size=count))
    ids = draw(st.lists(st.integers(1, 500), min_size=count, max_size=count, unique=True))
    held = draw(st.integers(0, count))
    cuts = draw(st.lists(st.integers(held, count), max_size=4))
    vectors = [np.array(d, np.float32) / np.float32(np.linalg.norm(d)) for d in directions]
    config = DuplicateConfig(
        min_similarity=draw(st.sampled_from([0.01, 0.5, 0.8, 0.99])), max_hash_distance=draw(st.integers(0, 64))
    )
    stream = list(zip(sorted(ids[:held]) + sorted(ids[held:]), vectors, hashes, strict=True))
    return stream, held, sorted({held, *cuts, count}), config


def columns(images: list[Image]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    vectors = np.array([vector for _, vector, _ in images], dtype=np.float32).reshape(-1, DIM)
    return np.array([i for i, _, _ in images], np.int64), vectors, np.array([h for _, _, h in images], np.int64)


@settings(max_examples=200, deadline=None)
@given(streams())
def test_keepers_are_those_of_the_plain_loop_however_the_stream_is_cut(
    case: tuple[list[Image], int, list[int], DuplicateConfig],
) -> None:
    images, held, cuts, config = case
    expected = assign_one_by_one(images[:held], images[held:], config)
    for sizes in ({}, {"_BLOCK_ROWS": 3, "_TILE_PAIRS": 6, "_GATHERED_VALUES": 6, "_CHUNK_ROWS": 4}):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in sizes.items():
                patch.setattr(near_duplicates, name, value)
            keepers = Keepers(embedding_dim=DIM, config=config)
            keepers.hold(*columns(images[:held]))
            found = [keepers.assign(*columns(images[start:end])) for start, end in pairwise(cuts)]
        assert [number for part in found for number in part.tolist()] == expected


def test_no_chain_is_made() -> None:
    """Each of these looks like the one before it, and the last no more like the first."""
    angles = np.deg2rad(np.arange(0, 100, 10))
    vectors = np.stack([np.cos(angles), np.sin(angles), np.zeros(10)], axis=1).astype(np.float32)
    config = DuplicateConfig(min_similarity=float(np.cos(np.deg2rad(15))), max_hash_distance=0)
    found = Keepers(embedding_dim=DIM, config=config).assign(np.arange(10), vectors, np.zeros(10, np.int64))
    assert found.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


def test_both_the_embedding_and_the_hash_must_be_alike() -> None:
    vectors = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=np.float32)
    hashes = np.array([0, -1, 0, 63])
    found = Keepers(embedding_dim=DIM).assign(np.arange(1, 5), vectors, hashes)
    assert found.tolist() == [1, 2, 3, 1]


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


@pytest.mark.parametrize(
    "values", [{"min_similarity": 0.0}, {"min_similarity": 1.1}, {"min_similarity": float("nan")},
               {"max_hash_distance": -1}, {"max_hash_distance": 65}],
)  # fmt: skip
def test_limits_out_of_range_are_named(values: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(values))} must be"):
        DuplicateConfig(**values)
