"""An engine behind a cache: the same vectors to the bit, and the model sees no image twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from index.embedding.cached import open_cached_engine
from index.errors import ModelFileError
from index.images.preprocess import Pixels
from index.items import EmbeddedItem, Place
from index.model.embedder import Embedder
from tests.conftest import draw_image
from tests.index.galleries import count_cached, count_seen
from tests.waiting import wait_for

COUNT = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("items")
    for number in range(COUNT):
        draw_image((8 * number, 90, 200), seed=number).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"no image at all")
    (folder / "8.png").unlink()
    return folder


def list_items(folder: Path, numbers: Iterable[int] = range(COUNT)) -> list[tuple[int, Place]]:
    return [(100 + n, Place(folder / f"{n}.png", f"{n}.png")) for n in numbers]


def embed(
    model: Path, items: list[tuple[int, Place]], *, cache: Path | None, batch_size: int = 4
) -> tuple[dict[int, EmbeddedItem], int]:
    """The outcomes by id, and how many images the cache had."""
    with open_cached_engine(Embedder(model, threads=1), cache=cache, workers=2, batch_size=batch_size) as engine:
        batches = list(engine.embed(items))
        outcomes = {item.id: item for batch in batches for item in batch}
        assert sum(map(len, batches)) == len(outcomes) == len(items)
        return outcomes, engine.found


def assert_same(first: dict[int, EmbeddedItem], second: dict[int, EmbeddedItem]) -> None:
    assert first.keys() == second.keys()
    for key, item in first.items():
        other = second[key]
        assert (item.vector is None) == (other.vector is None)
        if item.vector is not None:
            assert np.array_equal(item.vector, other.vector)
        assert (item.sha256, item.phash, item.measures) == (other.sha256, other.phash, other.measures)
        assert getattr(item.problem, "reason", None) == getattr(other.problem, "reason", None)


def test_a_second_time_the_model_sees_nothing_and_every_outcome_is_the_same(
    tmp_path: Path, tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = embed(tiny_model, list_items(folder), cache=None)
    with count_seen(monkeypatch) as seen:
        first, found = embed(tiny_model, list_items(folder), cache=tmp_path)
        assert (sum(seen), found) == (COUNT - 2, 0)
        seen.clear()
        second, found = embed(tiny_model, list_items(folder), cache=tmp_path)
        assert (seen, found) == ([], COUNT - 2)
    assert_same(plain, first)
    assert_same(plain, second)
    problems = {key - 100: item.problem.reason for key, item in second.items() if item.problem is not None}
    assert problems == {3: "not-an-image", 8: "unreadable"}
    gone = Place(tmp_path / "gone.png", "gone.png", sha256=first[105].sha256)  # of known bytes, so it is not read
    outcomes, found = embed(tiny_model, [(105, gone)], cache=tmp_path)
    assert found == 1
    assert_same({105: first[105]}, outcomes)


def test_what_is_closed_or_fails_in_the_middle_keeps_what_is_done(
    tmp_path: Path, tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = list_items(folder, range(10, 30))
    embedder = Embedder(tiny_model, threads=1)
    with (
        open_cached_engine(embedder, cache=tmp_path, workers=1, batch_size=4) as engine,
        closing(engine.embed(items)) as batches,
    ):
        next(batches)
        next(batches)
    assert embed(tiny_model, items, cache=tmp_path)[1] == 8

    def fail(self: Embedder, pixels: Pixels, *, batch_size: int) -> np.ndarray:
        if len(pixels) < batch_size:
            raise ModelFileError("tiny.onnx", "the model failed")
        return run(self, pixels, batch_size=batch_size)

    run = Embedder.embed_padded
    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed_padded", fail)
        with pytest.raises(ModelFileError):
            embed(tiny_model, list_items(folder, range(9, 19)), cache=tmp_path / "failing")
    assert embed(tiny_model, list_items(folder, range(9, 19)), cache=tmp_path / "failing")[1] == 8


KILLED = """
import sys
from pathlib import Path
import index.embedding.cached as cached
from index.embedding.cached import open_cached_engine
from index.model.embedder import Embedder
from index.items import Place
cached._KEPT_EVERY_S = 0.0
def items():
    for n in range(100000):
        yield n, Place(Path(sys.argv[2]) / f"{10 + n % 20}.png", "n")
with open_cached_engine(Embedder(Path(sys.argv[1]), threads=1), cache=Path(sys.argv[3]), batch_size=4) as engine:
    for _ in engine.embed(items()):
        pass
"""


@pytest.mark.slow
def test_what_was_killed_is_gone_on_with(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    arguments = [sys.executable, "-c", KILLED, str(tiny_model), str(folder), str(tmp_path)]
    process = subprocess.Popen(arguments)
    try:
        wait_for(lambda: count_cached(tmp_path) >= 4)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    before = count_cached(tmp_path)
    assert before >= 4
    outcomes, found = embed(tiny_model, list_items(folder, range(10, 30)), cache=tmp_path)
    assert found == before
    assert_same(embed(tiny_model, list_items(folder, range(10, 30)), cache=None)[0], outcomes)
