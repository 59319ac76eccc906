"""What the embedding engine promises."""

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from index.embedding.engine import BATCHES_AHEAD, ByteBudget, ThreadedEngine, in_order
from index.errors import ModelFileError
from index.items import EmbeddedItem, Place
from index.model.embedder import Embedder
from tests.conftest import draw_image
from tests.models import write_tiny_model

COUNT = 21


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("items")
    for number in range(COUNT):
        draw_image((9 * number, 90, 200), seed=number).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no image at all")
    (folder / "7.png").write_bytes(b"")
    (folder / "8.png").unlink()
    return folder


def list_items(folder: Path, *numbers: int) -> list[tuple[int, Place]]:
    return [(100 + n, Place(folder / f"{n}.png", f"{n}.png")) for n in numbers or range(COUNT)]


def embed(model: Path, items: list[tuple[int, Place]], **options: int) -> dict[int, EmbeddedItem]:
    batches = list(ThreadedEngine(Embedder(model, threads=1), **options).embed(items))
    outcomes = {item.id: item for batch in batches for item in batch}
    assert sum(map(len, batches)) == len(outcomes) == len(items)
    return outcomes


def test_every_item_has_a_vector_or_a_problem(tiny_model: Path, folder: Path) -> None:
    outcomes = embed(tiny_model, list_items(folder), workers=2, batch_size=4)
    problems = {key - 100: item.problem.reason for key, item in outcomes.items() if item.problem is not None}
    assert problems == {3: "not-an-image", 7: "empty-file", 8: "unreadable"}
    for key, item in outcomes.items():
        assert (item.vector is None) == (key - 100 in problems)
        if item.vector is not None:
            assert (item.vector.dtype, item.vector.ndim) == (np.float32, 1)
            assert abs(float(np.linalg.norm(item.vector)) - 1) < 1e-5
            assert item.phash is not None
            assert item.sha256 == hashlib.sha256((folder / f"{key - 100}.png").read_bytes()).hexdigest()


def test_vectors_do_not_depend_on_workers_or_batches(tiny_model: Path, folder: Path) -> None:
    together = embed(tiny_model, list_items(folder), workers=3, batch_size=4)
    alone = embed(tiny_model, list_items(folder, 5), workers=1, batch_size=4)[105].vector
    assert np.array_equal(together[105].vector, alone)


def test_items_are_taken_few_batches_ahead_and_closing_ends_the_work(tiny_model: Path, folder: Path) -> None:
    taken = done = 0

    def many() -> Iterator[tuple[int, Place]]:
        nonlocal taken
        for taken in range(1, 10_000):
            yield taken, Place(folder / f"{taken % 3}.png", "again.png")

    work = ThreadedEngine(Embedder(tiny_model, threads=1), workers=2, batch_size=4).embed(many())
    for batch in islice(work, 50):
        assert taken <= done + (BATCHES_AHEAD + 2) * 4
        assert [item.id for item in batch] == list(range(done + 1, done + 5))
        done += len(batch)
    work.close()
    assert done == 200


def test_a_failing_model_stops_the_work(tmp_path: Path, folder: Path) -> None:
    fussy = write_tiny_model(tmp_path / "fussy.onnx", only_batches_of=2)
    with pytest.raises(ModelFileError, match=r"fussy\.onnx: the model failed on 4 images"):
        embed(fussy, list_items(folder), workers=1, batch_size=4)


def test_outcomes_of_any_order_are_put_in_the_order_of_ids() -> None:
    batches = [[EmbeddedItem(3), EmbeddedItem(1)], [EmbeddedItem(4)], [EmbeddedItem(2)]]
    ordered = in_order(iter(batches), [1, 2, 3, 4])
    assert next(ordered).id == 1
    assert [item.id for item in ordered] == [2, 3, 4]


def test_threads_never_hold_more_than_the_budget_but_for_one_that_is_alone() -> None:
    budget, lock, held = ByteBudget(100), threading.Lock(), list[int]()

    def work(size_bytes: int) -> None:
        with budget.hold(size_bytes):
            with lock:
                held.append(size_bytes)
                assert sum(held) <= 100 or held == [size_bytes]
            threading.Event().wait(0.001)
            with lock:
                held.remove(size_bytes)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, [30, 60, 90, 150, 10, 40] * 20))
    assert held == []
