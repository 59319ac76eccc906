"""The file in which vectors are kept: what is in it is what was put in, or it is not in it."""

import hashlib
import logging
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.embedding.cached import VectorCache, describe_vectors
from index.items import EmbeddedItem
from index.measures import Measures
from index.model.embedder import Embedder
from tests.models import write_tiny_model

WIDTH = 6


def open_cache(folder: Path, *, model: str = "m", width: int = WIDTH, **options: Any) -> VectorCache:
    return VectorCache(folder, description={"model": model}, width=width, **options)


def sha256(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def draw_known(numbers: range, *, width: int = WIDTH) -> dict[str, EmbeddedItem]:
    """Vectors that depend on their number alone."""
    vectors = {n: np.random.default_rng(n).normal(size=width).astype(np.float32) for n in numbers}
    return {sha256(n): EmbeddedItem(0, vector, sha256(n), n - 5, Measures(n)) for n, vector in vectors.items()}


def same(found: dict[str, EmbeddedItem], expected: dict[str, EmbeddedItem]) -> bool:
    return set(found) == set(expected) and all(
        np.array_equal(found[key].vector, one.vector) and found[key].phash == one.phash for key, one in expected.items()
    )


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.binary(min_size=32, max_size=32).map(bytes.hex),
        st.tuples(
            st.lists(st.floats(width=32, allow_nan=False), min_size=WIDTH, max_size=WIDTH),
            st.integers(-(1 << 63), (1 << 63) - 1),
        ),
        max_size=20,
    )
)
def test_whatever_is_kept_is_found_again_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, kept: dict[str, tuple[list[float], int]]
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    known = {
        key: EmbeddedItem(0, np.array(values, np.float32), key, phash, Measures(7, border=values[0]))
        for key, (values, phash) in kept.items()
    }
    with open_cache(folder) as cache:
        cache.add([*known.values()])
    with open_cache(folder) as cache:
        found = cache.find([*kept, sha256(1)])
    assert set(found) == set(known)
    for key, one in known.items():
        assert (found[key].vector.tobytes(), found[key].phash, found[key].measures) == (
            one.vector.tobytes(),
            one.phash,
            one.measures,
        )


def test_what_a_vector_depends_on_makes_another_key(tmp_path: Path, tiny_model: Path) -> None:
    embedder = Embedder(tiny_model, threads=1)
    usual = describe_vectors(embedder, batch_size=8, max_pixels=100)
    assert usual == describe_vectors(Embedder(tiny_model, threads=1), batch_size=8, max_pixels=100)
    other = Embedder(write_tiny_model(tmp_path / "other.onnx", seed=1), threads=1)
    assert usual != describe_vectors(other, batch_size=8, max_pixels=100)
    assert usual != describe_vectors(embedder, batch_size=4, max_pixels=100)
    assert usual != describe_vectors(embedder, batch_size=8, max_pixels=99)


def test_a_damaged_entry_is_logged_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = draw_known(range(3))
    with open_cache(tmp_path) as cache:
        cache.add([*known.values()])
    database = sqlite3.connect(cache.path)
    entry = bytearray(database.execute("SELECT entry FROM vectors WHERE sha256 = ?", hash_of(1)).fetchone()[0])
    entry[11] ^= 1
    database.execute("UPDATE vectors SET entry = ? WHERE sha256 = ?", (bytes(entry), *hash_of(1)))
    database.commit()
    database.close()
    with open_cache(tmp_path) as cache:
        with caplog.at_level(logging.WARNING):
            assert set(cache.find(list(known))) == {sha256(0), sha256(2)}
        assert "1 damaged entries are ignored" in caplog.text
        cache.add([known[sha256(1)]])
        assert same(cache.find(list(known)), known)


def hash_of(number: int) -> tuple[bytes]:
    return (bytes.fromhex(sha256(number)),)


@pytest.mark.parametrize("places", [1, 30, 3000])
def test_whatever_is_damaged_in_a_file_no_wrong_vector_comes_out_of_it(tmp_path: Path, places: int) -> None:
    known = draw_known(range(600))  # more than one statement takes
    with open_cache(tmp_path) as cache:
        cache.add([*known.values()])
    content = bytearray(cache.path.read_bytes())
    chance = np.random.default_rng(places)
    for place in chance.integers(0, len(content), size=places):
        content[place] ^= int(chance.integers(1, 256))
    cache.path.write_bytes(content)
    for _ in range(2):  # the second command begins anew where the first one had to give up
        with open_cache(tmp_path) as cache:
            found = cache.find(list(known))
            assert same(found, {key: known[key] for key in found})
            cache.add([*known.values()])
    with open_cache(tmp_path) as cache:
        found = cache.find(list(known))
        assert same(found, {key: known[key] for key in found})
        assert len(found) >= 590  # damage may hide a few again


@pytest.mark.parametrize("content", [b"", b"no database at all" * 99, b"SQLite format 3\0" + bytes(5000)])
def test_a_file_that_is_no_cache_begins_anew(tmp_path: Path, content: bytes) -> None:
    with open_cache(tmp_path, width=4) as cache:  # nor one of another width
        cache.add([*draw_known(range(3), width=4).values()])
    with open_cache(tmp_path) as cache:
        assert cache.find([sha256(1)]) == {}
    cache.path.write_bytes(content)
    with open_cache(tmp_path) as cache:
        assert cache.find([sha256(1)]) == {}
        cache.add([*draw_known(range(3)).values()])
        assert same(cache.find([sha256(1)]), draw_known(range(1, 2)))


def test_an_unwritable_folder_means_no_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING), open_cache(tmp_path / "file") as cache:
        cache.add([*draw_known(range(3)).values()])
        assert (len(cache), cache.find([sha256(1)])) == (0, {})
    assert caplog.text.count("cannot be opened") == 1


def test_models_share_a_file_and_none_gets_the_vectors_of_another(tmp_path: Path) -> None:
    for model, width in (("one", 6), ("two", 6), ("three", 4)):
        with open_cache(tmp_path, model=model, width=width) as cache:
            assert (len(cache), cache.find([sha256(1)])) == (0, {})
            cache.add([*draw_known(range(3), width=width).values()])
    for model, width in (("one", 6), ("three", 4)):
        with open_cache(tmp_path, model=model, width=width) as cache:
            assert len(cache) == 3
            assert same(cache.find([sha256(1)]), draw_known(range(1, 2), width=width))


def test_a_full_file_gives_up_its_oldest_for_what_is_new_and_stays_full(tmp_path: Path) -> None:
    with open_cache(tmp_path, max_bytes=200_000) as cache:
        counts = []
        for start in range(0, 6000, 50):
            known = draw_known(range(start, start + 50))
            cache.add([*known.values()])
            assert len(cache.find(list(known))) == 50
            counts.append(len(cache))
        assert min(counts[60:]) > 0.8 * max(counts)
        assert cache.find(list(draw_known(range(500)))) == {}
        assert cache.path.stat().st_size < 250_000


def _fill(folder: Path, start: int) -> None:
    for first in range(start, start + 200, 20):
        with open_cache(folder) as cache:
            cache.add([*draw_known(range(first, first + 20)).values()])


@pytest.mark.slow
def test_two_processes_fill_one_file_at_once(tmp_path: Path) -> None:
    spawned = multiprocessing.get_context("spawn")
    workers = [spawned.Process(target=_fill, args=(tmp_path, start)) for start in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    known = draw_known(range(300))
    with open_cache(tmp_path) as cache:
        assert same(cache.find(list(known)), known)
