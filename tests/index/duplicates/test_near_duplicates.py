"""KeptImages against a plain loop; the duplicates of a gallery; copy thresholds with and without alike images."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Ids, Vectors, normalise_rows
from index.duplicates import near_duplicates
from index.duplicates.duplicate_config import DuplicateConfig
from index.duplicates.near_duplicates import (
    Fingerprint,
    KeptImages,
    ReadVectors,
    find_gallery_duplicates,
    raise_threshold,
)
from index.errors import GalleryDamagedError
from index.vectors.shards import VectorRows, gather_rows
from tests.conftest import tries

DIM = 3
Image = tuple[int, np.ndarray, int]


def similarity(left: np.ndarray, right: np.ndarray) -> np.float32:
    return np.float32(np.dot(left.astype(np.float64), right.astype(np.float64)))


def assign_one_by_one(kept_images: list[Image], stream: list[Image], config: DuplicateConfig) -> list[int]:
    """The rule as it is written, one image and one kept image at a time."""
    kept_images, found = list(kept_images), []
    for number, vector, phash in stream:
        repeated = [
            (-similarity(vector, other), kept_image)
            for kept_image, other, other_hash in kept_images
            if similarity(vector, other) >= np.float32(config.min_similarity)
            and ((phash ^ other_hash) % 2**64).bit_count() <= config.max_hash_distance
        ]
        if repeated:
            found.append(min(repeated)[1])
        else:
            kept_images.append((number, vector, phash))
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
        min_similarity=draw(st.sampled_from([0.01, 0.5, 0.8, 0.99])),
        max_hash_distance=draw(st.integers(0, 64) | st.just(64)),
    )
    stream = list(zip(sorted(ids[:held]) + sorted(ids[held:]), vectors, hashes, strict=True))
    return stream, held, sorted({held, *cuts, count}), config


def columns(images: list[Image]) -> tuple[Ids, Ids]:
    return np.array([i for i, _, _ in images], np.int64), np.array([h for _, _, h in images], np.int64)


def reader(ids: Ids, vectors: Vectors, *, read_ids: list[int] | None = None) -> ReadVectors:
    """Reads vectors by the ids of images; `read_ids` gets all that were asked for."""
    places = {number: place for place, number in enumerate(ids.tolist())}

    def read(wanted: Ids) -> Vectors:
        assert 0 < len(wanted) <= near_duplicates.PAIRS_AT_ONCE
        assert np.all(np.diff(wanted) > 0)
        if read_ids is not None:
            read_ids.extend(wanted.tolist())
        return vectors[[places[number] for number in wanted.tolist()]]

    return read


@pytest.mark.deep
@settings(max_examples=tries(50, deep=200), deadline=None)
@given(streams())
def test_kept_images_are_those_of_a_loop(case: tuple[list[Image], int, list[int], DuplicateConfig]) -> None:
    images, held, cuts, config = case
    expected = assign_one_by_one(images[:held], images[held:], config)
    vectors = np.array([vector for _, vector, _ in images], dtype=np.float32).reshape(-1, DIM)
    for sizes in ({}, {"_BLOCK_ROWS": 3, "_TILE_ROWS": 2, "_TILE_PLACES": 3, "PAIRS_AT_ONCE": 2}):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in sizes.items():
                patch.setattr(near_duplicates, name, value)
            kept_images = KeptImages(reader(columns(images)[0], vectors), config)
            kept_images.hold(*columns(images[:held]))
            found = [kept_images.assign(*columns(images[start:end])) for start, end in pairwise(cuts)]
        assert [number for part in found for number in part.tolist()] == expected


def test_only_vectors_of_images_with_near_hashes_are_read() -> None:
    ids, hashes = np.arange(1, 9), np.array([0, -1, 2**40 - 1, 1, 2**20 - 1, 2**40 - 1, 2**52 - 1, 2**20 - 1])
    vectors = np.eye(8, dtype=np.float32)
    vectors[4] = vectors[7]
    read_ids: list[int] = []
    kept_images = KeptImages(reader(ids, vectors, read_ids=read_ids))
    kept_images.hold(ids[:3], hashes[:3])
    assert kept_images.assign(ids[3:], hashes[3:]).tolist() == [4, 5, 6, 7, 5]
    assert set(read_ids) == {1, 4, 3, 6, 5, 8}


THRESHOLD = 0.85


def draw(count: int, *, dim: int) -> Vectors:
    """Different images: the fewer dimensions, the more of them are alike; none with 20, as on photos of clothes."""
    return normalise_rows(np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32))


def edit(vectors: Vectors, *, up_to: float, seed: int = 2) -> Vectors:
    """A copy of every image at a distance (1 - cosine) up to about this one."""
    random, (count, dim) = np.random.default_rng(seed), vectors.shape
    noise = random.normal(size=(count, dim)) * np.sqrt(2 * up_to * random.random((count, 1)) / dim)
    return normalise_rows((vectors + noise).astype(np.float32))


def raise_for(vectors: Vectors) -> float:
    return raise_threshold(THRESHOLD, np.arange(len(vectors)), lambda ids: vectors[ids])


@pytest.mark.parametrize("shared", [0, 2])
def test_alike_images_raise_the_threshold_and_lose_few_of_their_copies(shared: float) -> None:
    """Some of them, or all: what they share lets all lie within twice the threshold's distance."""
    alike = draw(1000, dim=9)
    alike[:, 0] += shared
    alike = normalise_rows(alike)
    copies = edit(alike[:300], up_to=0.03)
    raised = raise_for(np.concatenate([alike, copies]))
    pairs = (alike @ alike.T)[np.triu_indices(1000, k=1)]
    assert THRESHOLD < raised <= 1 - (1 - THRESHOLD) / 2.5 + 1e-4
    assert (pairs >= raised).sum() < 0.3 * (pairs >= THRESHOLD).sum()
    assert ((alike[:300] * copies).sum(axis=1) >= raised).mean() > 0.95


@pytest.mark.parametrize("times", [0, 1, 3])
def test_copies_of_unlike_images_leave_the_threshold_as_it_is(times: int) -> None:
    """Also where many copies lie just below it."""
    unlike = draw(1000, dim=20)
    copies = [edit(unlike, up_to=0.5, seed=seed) for seed in range(times)]
    assert raise_for(np.concatenate([unlike, *copies])) == THRESHOLD


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_a_gallery_of_few_images_has_the_models_threshold(count: int) -> None:
    assert raise_for(draw(count, dim=4)) == THRESHOLD


def test_the_raised_threshold_depends_neither_on_order_nor_on_equal_images() -> None:
    alike = draw(500, dim=8)
    raised = raise_for(alike)
    assert raise_for(alike[::-1]) == raised > THRESHOLD
    shuffled = np.random.default_rng(3).permutation(500)
    assert raise_threshold(THRESHOLD, shuffled, lambda ids: alike[ids]) == raised
    assert raise_for(np.concatenate([alike, alike[:50]])) == pytest.approx(raised, abs=0.01)


def test_a_sample_stands_for_a_large_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    alike, read_ids = draw(3000, dim=11), list[Ids]()
    raised = raise_for(alike)
    monkeypatch.setattr(near_duplicates, "_SAMPLED", 1000)

    def read(ids: Ids) -> Vectors:
        read_ids.append(ids)
        return alike[ids]

    assert raise_threshold(THRESHOLD, np.arange(3000), read) == pytest.approx(raised, abs=0.01)
    assert [len(ids) for ids in read_ids] == [1000]
    assert np.all(np.diff(read_ids[0]) > 0)


def read_vectors(ids: list[int], vectors: list[list[float]]) -> ReadVectors:
    rows = [VectorRows(np.array(ids, dtype=np.int64), np.array(vectors, dtype=np.float32))]
    return lambda wanted: gather_rows(wanted, rows, embedding_dim=DIM)


ALIKE, OTHER = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]


def test_a_gallery_is_grouped_around_its_first_images() -> None:
    """1 and 4 are one file, 3 looks like them; 5 and 6 were left out for 3 and 2, 7 for 2 with the bytes of 6."""
    images = [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0), Fingerprint(3, "c", 3), Fingerprint(4, "a", 0)]
    images += [Fingerprint(5, "d", 1, kept_id=3), *(Fingerprint(number, "e", None, kept_id=2) for number in (6, 7))]
    read = read_vectors([1, 2, 3, 4], [ALIKE, OTHER, [0.96, 0.28, 0.0], ALIKE])
    found = find_gallery_duplicates(images, read, config=DuplicateConfig())
    assert found == {3: 1, 4: 1, 5: 1, 6: 2, 7: 2}
    assert find_gallery_duplicates(images, read, config=None) == {4: 1, 7: 6}


def test_equal_files_stay_together_whatever_their_vectors_and_an_indexed_one_keeps_them() -> None:
    images = [Fingerprint(1, "a", 0, kept_id=3), Fingerprint(3, "a", 0)]
    images += [Fingerprint(4, "a", None), Fingerprint(5, "b", None)]
    read = read_vectors([3, 4, 5], [ALIKE, OTHER, ALIKE])
    for config in (None, DuplicateConfig()):
        assert find_gallery_duplicates(images, read, config=config) == {1: 3, 4: 3}


def test_a_labelled_image_is_kept_before_one_without_a_label() -> None:
    images = [Fingerprint(1, "a", 0, labelled=False), Fingerprint(2, "a", 0), Fingerprint(3, "b", 0)]
    read = read_vectors([1, 2, 3], [ALIKE, ALIKE, ALIKE])
    for config, expected in ((None, {1: 2}), (DuplicateConfig(), {1: 2, 3: 2})):
        assert find_gallery_duplicates(images, read, config=config) == expected


def test_an_image_without_a_vector_or_set_aside_for_one_that_is_not_indexed_is_damage() -> None:
    with pytest.raises(GalleryDamagedError, match="image 2 has no vector"):
        find_gallery_duplicates(
            [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0)], read_vectors([1], [ALIKE]), config=DuplicateConfig()
        )

    for config in (None, DuplicateConfig()):
        for others in ([], [Fingerprint(3, "c", 0, kept_id=1)]):
            images = [Fingerprint(1, "a", 0), Fingerprint(2, "b", 0, kept_id=3), *others]
            with pytest.raises(GalleryDamagedError, match=r"2 was left out for image 3, .*`retrieval index verify`"):
                find_gallery_duplicates(images, read_vectors([1], [ALIKE]), config=config)
