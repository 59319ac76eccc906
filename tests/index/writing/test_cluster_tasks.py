"""What a task on a cluster's node refuses, and the addresses at which no cluster answers; the rest needs a cluster."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from index.errors import GalleryError, InputError, MissingDependencyError, RetrievalError
from index.sources.local_source import FolderSource
from index.writing.build_config import BuildConfig
from index.writing.cluster_build import connected, embed_sent
from index.writing.shard_plan import Shard
from index.writing.sharding import ShardReport, SharedWork, merge_shards, open_shards


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, image_folder: Path) -> SharedWork:
    config = BuildConfig(batch_size=4)
    return open_shards(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g", config=config)


def send(work: SharedWork, shard: Shard) -> ShardReport | RetrievalError:
    """As Ray sends it."""
    told = work.gallery, work.folder, work.sources, work.plan, work.config, shard
    return embed_sent(*pickle.loads(pickle.dumps(told)))


def test_tasks_make_the_shards_of_a_gallery(work: SharedWork) -> None:
    reports = [send(work, Shard(number, 2)) for number in (1, 2)]
    assert all(isinstance(report, ShardReport) for report in reports)
    report = merge_shards(work.gallery)
    assert report.new_images == sum(report.images - report.skipped for report in reports)


def test_a_node_that_sees_no_shared_folder_says_so(work: SharedWork, tmp_path: Path) -> None:
    answer = send(replace(work, folder=tmp_path / "nowhere"), Shard(1, 2))
    assert isinstance(answer, GalleryError)
    assert "not to be seen from there; name a folder that all machines share" in str(answer)


def test_a_node_that_sees_no_images_says_so_and_writes_nothing(work: SharedWork) -> None:
    gone = replace(work, sources=[FolderSource("/no/such/photos")])
    answer = send(gone, Shard(1, 2))
    assert isinstance(answer, InputError)
    assert "/no/such/photos: not to be seen from there" in str(answer)
    assert not (work.folder / Shard(1, 2).folder).exists()


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
