import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from index.errors import GalleryDamagedError, GalleryError
from index.labels.decisions import LabelDecision
from index.versions.versions import find_version, read_current, versions_folder
from index.writing.build import build_gallery, update_gallery
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.live_gallery import LiveGallery, Snapshot
from retrieval_app.serving.search_engine import Engine, SearchProbe
from retrieval_app.serving.serving_config import ServingConfig
from tests.conftest import draw_folder, draw_image
from tests.waiting import wait_for


@pytest.fixture
def growing(tmp_path: Path, tiny_model: Path) -> Path:
    draw_folder(tmp_path / "images")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "images"], out=tmp_path / "gallery")
    return tmp_path / "gallery"


def _grow(gallery: Path, *, seed: int) -> None:
    draw_image((220, 40, 40), seed=seed).save(gallery.parent / "images" / "red" / f"new{seed}.png")
    update_gallery(gallery)


def test_a_new_version_takes_the_place_and_the_old_one_answers_to_its_end(growing: Path) -> None:
    live = LiveGallery(growing)
    before = live.current
    assert live.refresh() is False
    _grow(growing, seed=900)
    assert live.refresh() is True
    assert live.current.version != before.version
    assert live.current.gallery.count == before.gallery.count + 1
    assert len(before.gallery.search(before.gallery.vector(1), k=100)) == before.gallery.count
    assert live.current.gallery.embedder is before.gallery.embedder
    live.close()


def _current(live: LiveGallery) -> Snapshot:
    live.follow_decisions()
    return live.current


def test_unreadable_decisions_leave_the_ones_before(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval_app.serving.live_gallery._DECISIONS_PAUSE_S", 0.0)
    live, store = LiveGallery(growing), ReviewStore.of_gallery(growing)
    (row,) = live.current.gallery.rows([1])
    store.decide([LabelDecision(row.sha256 or "", row.label, "change", "heron")])
    store.close()
    snapshot = _current(live)
    assert snapshot.gallery.image(1).label == "heron"
    assert _current(live) is snapshot
    sound = store.path.read_bytes()
    store.path.write_bytes(b"no database" * 1000)
    assert _current(live) is snapshot
    assert "review.sqlite: the label decisions cannot be read" in str(live.decisions_problem)
    store.path.write_bytes(sound)
    assert _current(live).gallery.image(1).label == "heron"
    assert live.decisions_problem is None
    store.path.unlink()
    assert _current(live).gallery.image(1).label == row.label
    live.close()


def test_while_another_program_locks_the_decisions_those_before_answer_at_once(growing: Path) -> None:
    live, store = LiveGallery(growing), ReviewStore.of_gallery(growing)
    (row,) = live.current.gallery.rows([1])
    store.decide([LabelDecision(row.sha256 or "", row.label, "change", "heron")])
    assert _current(live).gallery.image(1).label == "heron"
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        step = other.execute("INSERT INTO steps (kind, decided_at) SELECT kind, decided_at FROM steps").lastrowid
        changed = "SELECT ?, subject, json_set(details, '$.new_label', 'egret') FROM decisions"
        other.execute(f"INSERT INTO decisions (step, subject, details) {changed}", (step,))
        begun = time.monotonic()
        for _ in range(200):
            if not live.has_newest_decisions():
                live.follow_decisions()
            assert live.current.gallery.image(1).label == "heron"
        assert time.monotonic() - begun < 10  # one of them waits a tenth of a second, and not each
        assert "leave the file where it is" in str(live.decisions_problem)
        other.execute("COMMIT")
    wait_for(lambda: _current(live).gallery.image(1).label == "egret")
    assert live.decisions_problem is None
    store.close()
    live.close()


def test_the_watcher_finds_new_versions_and_those_that_nobody_uses_any_more_can_go(growing: Path) -> None:
    live = LiveGallery(growing)
    live.watch(poll_s=0.02)
    for seed in range(900, 904):
        version = live.current.version
        _grow(growing, seed=seed)
        for _ in range(500):
            if live.current.version != version:
                break
            live._stop.wait(0.02)
        assert live.current.version != version
    assert len(list(versions_folder(growing).iterdir())) <= 3
    live.close()


def test_damage_is_not_served(growing: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval_app.serving.live_gallery._PAUSE_S", 0.0)
    live = LiveGallery(growing)
    before = live.current
    _grow(growing, seed=900)
    current = read_current(growing)
    catalogue = current.folder / "catalog.sqlite"
    sound = catalogue.read_bytes()
    catalogue.unlink()
    catalogue.write_bytes(sound[:-1] + b"!")
    assert live.refresh() is False
    assert live.current is before
    assert "damaged" in str(live.problem)
    assert live.refresh() is False
    assert caplog.text.count("cannot be served") == 1
    catalogue.write_bytes(sound)
    assert live.refresh() is True
    assert live.problem is None
    live.close()


def test_a_version_that_fails_to_open_is_tried_once(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, tried = LiveGallery(growing), list[int]()
    _grow(growing, seed=900)

    def fail(*_: object, **__: object) -> None:
        tried.append(1)
        raise MemoryError("no room for another version")

    with monkeypatch.context() as patched:
        patched.setattr("retrieval_app.serving.live_gallery.Gallery.open", fail)
        assert not any(live.refresh() for _ in range(20))
    assert (live.problem, len(tried)) == ("no room for another version", 1)
    _grow(growing, seed=901)  # another version is tried at once
    assert live.refresh() is True
    live.close()


def test_a_gallery_built_anew_in_the_same_place_is_another_one(growing: Path, tiny_model: Path) -> None:
    live = LiveGallery(growing)
    before = live.current
    shutil.rmtree(growing)
    (growing.parent / "images" / "blue").rename(growing.parent / "images" / "apple")
    build_gallery(model_path=tiny_model, sources=[growing.parent / "images"], out=growing)
    assert find_version(growing).name == before.version
    with pytest.raises(GalleryError, match="replaced while it was open"):
        before.gallery.image(1)
    assert live.refresh() is True
    assert live.current.gallery.image(1).label == "apple"
    live.close()


def test_a_catalogue_that_changes_while_it_is_served_is_told_of_as_damage(growing: Path) -> None:
    live = LiveGallery(growing)
    catalog = find_version(growing).folder / "catalog.sqlite"
    assert live.current.gallery.rows([1])[0].id == 1  # which is remembered
    catalog.write_bytes(catalog.read_bytes()[:-4096] + bytes(4096))
    with pytest.raises(GalleryDamagedError, match=r"changed while it was open.*index repair.*index rollback"):
        live.current.gallery.image(1)
    with pytest.raises(GalleryDamagedError, match="changed while it was open"):
        live.current.gallery.rows([1])
    live.close()


@pytest.fixture
def engine(small_gallery: Path) -> Iterator[Engine]:
    opened = Engine(small_gallery, config=ServingConfig(threads=1))
    yield opened
    opened.close()


class _Gate:
    """A version whose vectors are read once the gate is open; how often they were asked for is counted."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gallery, self.insights, self.digest = self, snapshot.insights, snapshot.gallery.digest
        self._gallery, self.is_open, self.asked = snapshot.gallery, threading.Event(), 0

    def vector(self, image_id: int) -> Any:
        self.asked += 1
        assert self.is_open.wait(30)
        return self._gallery.vector(image_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gallery, name)


def test_a_version_is_searched_while_all_workers_and_readers_are_busy(engine: Engine) -> None:
    async def check() -> None:
        gate = threading.Event()
        blocked = [asyncio.create_task(engine.run(gate.wait, 30)) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            await engine.probe.check(engine.snapshot())
        finally:
            gate.set()
            await asyncio.gather(*blocked)

    asyncio.run(check())


def test_a_search_that_hangs_is_told_after_a_while_and_is_not_joined_by_others(engine: Engine) -> None:
    gate = _Gate(engine.snapshot())
    snapshot = cast("Snapshot", gate)

    async def check() -> None:
        probe = SearchProbe(longest_s=0.05)
        for _ in range(3):
            with pytest.raises(NotReadyError, match=r"more than 0\.05 seconds"):
                await probe.check(snapshot)
        assert gate.asked == 1
        gate.is_open.set()
        for _ in range(500):
            with suppress(NotReadyError):
                return await probe.check(snapshot)
            await asyncio.sleep(0.02)
        raise AssertionError("it is not found out that searches are answered again")

    try:
        asyncio.run(check())
    finally:
        gate.is_open.set()


def test_a_member_without_a_row_makes_it_unready(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.catalog.reader.Catalog.find", lambda *_: {})
    with pytest.raises(NotReadyError, match=r"image \d+ has no row"):
        asyncio.run(SearchProbe().check(engine.snapshot()))
