"""What a cluster's workers refuse, and the addresses at which no cluster answers; the rest needs a cluster."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from index.embedding.cluster import connected
from index.embedding.cluster_worker import ClusterWork, ClusterWorker
from index.embedding.outcome_files import read_outcomes
from index.errors import GalleryError, InputError, MissingDependencyError
from index.file_hash import hash_file
from index.model.backends.names import USUAL_BACKEND
from index.sources.folder import FolderSource
from index.sources.registry import find_source


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, image_folder: Path) -> ClusterWork:
    sources = (find_source(str(image_folder)),)
    (tmp_path / "shards").mkdir()
    return ClusterWork(
        tmp_path / "shards" / "cluster", tiny_model, hash_file(tiny_model), sources, 4, 1 << 20, USUAL_BACKEND
    )


def test_a_worker_writes_outcomes_that_can_be_read(work: ClusterWork) -> None:
    sent: ClusterWork = pickle.loads(pickle.dumps(work))  # as Ray sends it
    worker = ClusterWorker(sent, threads=2)
    described = worker.open()
    assert isinstance(described, dict)
    assert (described["model_sha256"], described["batch_size"]) == (work.model_sha256, 4)
    source = sent.sources[0]
    items = list(source.scan())[:6]
    keys = [f"{number:032x}" for number in range(6)]
    path = worker.embed(keys, [source.locate(item) for item in items], "x")
    assert isinstance(path, str)
    found, outcomes = read_outcomes(Path(path), made_by="x", width=16)
    assert found.tolist() == [key.encode() for key in keys]
    assert [outcome.problem for outcome in outcomes] == [None] * 6


def test_a_worker_that_sees_no_shared_folder_says_so(work: ClusterWork, tmp_path: Path) -> None:
    answer = ClusterWorker(replace(work, model=tmp_path / "nowhere" / "model.onnx"), threads=1).open()
    assert isinstance(answer, GalleryError)
    assert "not to be seen from there; name a folder that all machines share" in str(answer)


def test_a_worker_that_sees_no_images_says_so_and_writes_nothing(work: ClusterWork) -> None:
    gone = replace(work, sources=(FolderSource("/no/such/photos"),))
    assert "/no/such/photos: not to be seen from there" in str(ClusterWorker(gone, threads=1).open())
    worker = ClusterWorker(work, threads=1)
    worker.open()
    source = work.sources[0]
    items = list(source.scan())[:2]
    Path(source.location).rename(Path(source.location).with_name("elsewhere"))
    assert isinstance(worker.embed(["a", "b"], [source.locate(item) for item in items], "x"), InputError)
    assert not work.folder.exists()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"--engine ray needs .*\[cluster\]"), connected(None):
        pass


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "127.0.0.1:1"])
def test_an_address_without_a_cluster_is_named(address: str) -> None:
    said = (
        "no Ray cluster answers there" if "127" in address else "the address of a Ray cluster's head as HOST:PORT"
    )
    with pytest.raises(InputError, match=said), connected(address):
        pass
