from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from index.errors import GalleryDamagedError, GalleryError
from index.labels.decisions import LabelDecision
from index.versions.versions import find_version, read_current, versions_folder
from index.writing.build import build_gallery, update_gallery
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import LiveGallery, Snapshot
from tests.conftest import draw_folder, draw_image


@pytest.fixture
def growing(tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery folder beside its images."""
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
    assert live.swaps == 1
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
        other.execute("UPDATE label_decisions SET new_label = 'egret'")
        begun = time.monotonic()
        for _ in range(20):
            if not live.has_newest_decisions():
                live.follow_decisions()
            assert live.current.gallery.image(1).label == "heron"
        assert time.monotonic() - begun < 1.0  # one of them waits
        assert "leave the file where it is" in str(live.decisions_problem)
        other.execute("COMMIT")
    until = time.monotonic() + 10
    while _current(live).gallery.image(1).label != "egret" and time.monotonic() < until:
        time.sleep(0.02)
    assert live.current.gallery.image(1).label == "egret"
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


def test_a_damaged_new_version_is_not_served_and_the_old_one_goes_on(
    growing: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrieval_app.serving.live_gallery._PAUSE_S", 0.0)
    live = LiveGallery(growing)
    before = live.current
    _grow(growing, seed=900)
    current = read_current(growing)
    assert current is not None
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


def test_what_cannot_be_opened_at_the_start_is_refused(tmp_path: Path, growing: Path) -> None:
    with pytest.raises(GalleryError, match="no such gallery"):
        LiveGallery(tmp_path / "nothing")
    shutil.rmtree(versions_folder(growing))
    with pytest.raises(GalleryError):
        LiveGallery(growing)


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


def test_a_version_that_fails_to_open_is_tried_once(growing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveGallery(growing)
    _grow(growing, seed=900)
    tried = []

    def fail(*_: object, **__: object) -> None:
        tried.append(1)
        raise MemoryError("no room for another version")

    monkeypatch.setattr("retrieval_app.serving.live_gallery.Gallery.open", fail)
    assert not any(live.refresh() for _ in range(20))
    assert live.problem == "no room for another version"
    assert len(tried) == 1
    monkeypatch.undo()
    _grow(growing, seed=901)  # another version is tried at once
    assert live.refresh() is True
    live.close()
