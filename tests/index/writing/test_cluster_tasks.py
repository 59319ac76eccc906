"""What a task on a cluster's node refuses, and the addresses at which no cluster answers; the rest needs a cluster."""

import pickle
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from index.errors import GalleryError, InputError, RetrievalError
from index.versions.annotations import added_folder
from index.writing import cluster_build
from index.writing.build import add_to_gallery
from index.writing.build_config import BuildConfig
from index.writing.cluster_build import build_on_cluster, connected, embed_sent
from index.writing.shard_plan import Shard
from index.writing.sharding import ShardReport, SharedWork, merge_shards, open_listing, open_shards
from tests.conftest import draw_image

LISTING = ".retrieval-0123456789abcdef.tmp"


def open_work(model: Path, images: Path, out: Path, **options: Any) -> SharedWork:
    config = BuildConfig(batch_size=4)
    work = open_shards(model_path=model, sources=[images], out=out, config=config, **options)
    with open_listing(work) as catalog:
        catalog.write_finished(work.folder / LISTING, compact=False)
    return work


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, image_folder: Path) -> SharedWork:
    return open_work(tiny_model, image_folder, tmp_path / "g")


def send(work: SharedWork, shard: Shard) -> ShardReport | RetrievalError:
    told = work.gallery, work.folder / LISTING, work.config, shard
    return embed_sent(*pickle.loads(pickle.dumps(told)))


def test_tasks_make_the_shards_of_a_gallery(work: SharedWork) -> None:
    reports = [send(work, Shard(number, 2)) for number in (1, 2)]
    assert all(isinstance(report, ShardReport) for report in reports)
    report = merge_shards(work.gallery)
    assert report.new_images == sum(report.images - report.skipped for report in reports)


def test_a_node_needs_no_photos_that_people_added(
    work: SharedWork, tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    send(work, Shard(1, 1))
    merge_shards(work.gallery)
    uploads = added_folder(work.gallery)
    uploads.mkdir(parents=True)
    draw_image((9, 8, 7), seed=1).save(uploads / "1.png")
    add_to_gallery(work.gallery, [uploads], config=work.config)
    draw_image((7, 8, 9), seed=2).save(image_folder / "new.png")
    report = send(open_work(tiny_model, image_folder, work.gallery), Shard(1, 1))
    assert isinstance(report, ShardReport), report
    assert report.new_images == 1
    assert merge_shards(work.gallery).new_images == 1


def test_shards_go_with_what_a_killed_build_left(work: SharedWork) -> None:
    (work.folder / f"{LISTING}-journal").touch()
    send(work, Shard(1, 1))
    merge_shards(work.gallery)
    assert not work.folder.exists()


def test_a_node_that_sees_no_shared_folder_says_so(work: SharedWork, tmp_path: Path) -> None:
    answer = send(replace(work, gallery=tmp_path / "nowhere"), Shard(1, 2))
    assert isinstance(answer, GalleryError)
    assert "not visible on a node; give an --out that all machines share" in str(answer)


def test_a_node_that_sees_no_images_says_so_and_writes_nothing(work: SharedWork, image_folder: Path) -> None:
    image_folder.rename(image_folder.with_name("away"))
    answer = send(work, Shard(1, 2))
    assert isinstance(answer, InputError)
    assert f"{image_folder}: no such file or folder" in str(answer)
    assert not (work.folder / Shard(1, 2).folder).exists()


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "127.0.0.1:1"])
def test_an_address_without_a_cluster_is_named(address: str) -> None:
    said = "no Ray cluster answers there" if "127" in address else "the address of a Ray cluster's head as HOST:PORT"
    with pytest.raises(InputError, match=said), connected(address):
        pass


class RayError(Exception):
    """Stands for the errors of Ray."""

    cause = ValueError("no")


ERRORS = {
    name: type(name, (RayError,), {})
    for name in ("RayTaskError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
} | {"RayError": RayError}


class PretendedRay:
    """One that runs every task when its result is taken."""

    def __init__(self, *nodes: Mapping[str, float], error: Exception | None = None) -> None:
        self.exceptions, self._nodes, self._error = SimpleNamespace(**ERRORS), nodes, error

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": str(n), "Alive": True, "Resources": found} for n, found in enumerate(self._nodes)]

    def remote(self, run: Callable[..., Any]) -> Any:
        task = SimpleNamespace(remote=lambda *told: lambda: run(*told))
        return SimpleNamespace(options=lambda **_: task)

    def wait(self, waiting: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, ref: Any) -> Any:
        if self._error is not None:
            raise self._error
        return ref()


def build(work: SharedWork, ray: PretendedRay, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The progress that was told."""

    @contextmanager
    def give(_: str | None) -> Any:
        yield ray

    told: list[tuple[int, int]] = []
    monkeypatch.setattr(cluster_build, "connected", give)
    build_on_cluster(work, progress=lambda done, total: told.append((done, total)))
    return told


def test_progress_has_a_total_and_ends_with_it(work: SharedWork, monkeypatch: pytest.MonkeyPatch) -> None:
    told = build(work, PretendedRay({"CPU": 1}, {"CPU": 1}), monkeypatch)
    assert len(told) == 4
    assert told[-1][0] == told[-1][1]
    assert all(abs(total - told[-1][1]) < 4 for _, total in told)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("WorkerCrashedError", r"workers died 4 times: shard 1 of 2 \(.*00001-of-00002\) failed: why; take out"),
        ("OutOfMemoryError", r"workers died 4 times: shard 1 of 2 "),
        ("RayError", r"shard 1 of 2 \(.*00001-of-00002\) failed: why; what is done"),
        ("RayTaskError", r"a worker failed at shard 1 of 2 \(.*00001-of-00002\): ValueError"),
    ],
)
def test_an_error_names_the_shard_and_only_what_died_has_died(
    kind: str, said: str, work: SharedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = PretendedRay({"CPU": 1}, error=ERRORS[kind]("why"))
    with pytest.raises(GalleryError, match=said):
        build(work, ray, monkeypatch)
