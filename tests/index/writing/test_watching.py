"""Watching: when it updates, what it tries again, and what it says where there are no notices."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.writing.build import add_to_gallery, update_gallery
from index.writing.build_config import WatchConfig
from index.writing.publishing import BuildReport
from index.writing.watching import Retries, Schedule, watch_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, rows

_S = 1_000_000_000  # nanoseconds
NOW_S = 1_900_000_000.0


def test_an_update_waits_until_changes_cease_but_not_for_ever() -> None:
    schedule = Schedule(WatchConfig(scan_every=300), now=0)
    assert schedule.is_due(0)  # what changed before
    schedule.end(1)
    assert not schedule.is_due(300)
    assert schedule.is_due(301)
    for second in range(10, 20):
        schedule.change(second)
        assert not schedule.is_due(second + 1.9)
    assert schedule.is_due(21)
    schedule.begin()
    schedule.end(22)
    assert not schedule.is_due(23)
    for second in range(30, 60):
        schedule.change(second)
        assert not schedule.is_due(second + 0.9)
    assert schedule.is_due(60)


def test_failed_items_are_tried_again_soon_while_recent_and_ever_more_rarely() -> None:
    retries, recent, old = Retries(), (1, 10, round(NOW_S - 3) * _S), (2, 10, round(NOW_S - 86_400) * _S)
    tries: dict[int, list[float]] = {1: [], 2: []}
    retries.record([recent, old], now=0, clock_s=NOW_S)
    for now in range(1, 86_400):
        if due := retries.due(now):
            for number in due:
                tries[number].append(now)
            retries.record([recent, old], now=now, clock_s=NOW_S + now)
    assert tries[1][:5] == [5, 15, 35, 75, 155]
    assert len(tries[1]) < 16
    assert tries[2][0] == 3600
    assert len(tries[2]) < 6
    written = (1, 20, round(NOW_S + 86_400) * _S)  # it has changed, and fails in another state
    retries.record([written], now=86_400, clock_s=NOW_S + 86_400)
    assert retries.due(86_404) == []
    assert retries.due(86_405) == [1]
    retries.record([], now=86_405, clock_s=NOW_S + 86_405)
    assert retries.due(10**9) == []


def test_an_update_tries_the_named_failed_items_alone(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    whole, names = (images / "red/0.jpg").read_bytes(), ("one.jpg", "other.jpg")
    for name in names:
        (images / name).write_bytes(bytes(len(whole)))
    build(images, tmp_path / "gallery", tiny_model)
    skipped = [row for row in rows(tmp_path / "gallery") if row.status == "skipped"]
    assert [row.path for row in skipped] == [*names]
    for row in skipped:  # a drive that tells neither a new size nor a new time
        (images / row.path).write_bytes(whole)
        os.utime(images / row.path, ns=(row.mtime_ns, row.mtime_ns))
    one = skipped[0]
    for retry, indexed in (([], 6), ([one.id], 7), ([], 7), (None, 8)):
        assert update_gallery(tmp_path / "gallery", retry=retry, config=SMALL).indexed == indexed
    assert Gallery.open(tmp_path / "gallery").count == 8


def test_without_the_package_of_notices_it_says_so_and_scans(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(draw_folder(tmp_path / "images", per_class=2), tmp_path / "gallery", tiny_model)
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    said: list[str] = []

    def stop(_: Sequence[int] | None) -> BuildReport:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # the first scan
        next(watch_gallery(tmp_path / "gallery", update=stop, config=WatchConfig(), say=said.append))
    assert len(said) == 1
    assert "scanned every 300 seconds" in said[0]
    assert "retrieval-app[watch]" in said[0]


def watch(gallery: Path, update: Callable[[], BuildReport], *steps: Callable[[], object]) -> list[float]:
    """Do a step after each update; seconds from each to the update that follows."""
    waits, done, left = list[float](), time.monotonic(), list(steps)

    def update_once(_: Sequence[int] | None) -> BuildReport:
        nonlocal done
        waits.append(time.monotonic() - done)
        if not left:
            raise KeyboardInterrupt
        report = update()
        left.pop(0)()
        done = time.monotonic()
        return report

    config = WatchConfig(scan_every=20, quiet_s=0.1)
    with pytest.raises(KeyboardInterrupt):
        list(watch_gallery(gallery, update=update_once, config=config, say=lambda _: None))
    return waits[1:]


def test_a_pattern_is_updated_neither_for_the_gallery_below_it_nor_for_other_files(
    tmp_path: Path, tiny_model: Path
) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    gallery, new = images / "red/gallery", images / "red/new.jpg"
    build(images / "red/*.jpg", gallery, tiny_model)

    def write_others() -> None:
        for name in ("gallery/other.jpg", "other.txt", "gone.txt"):
            (images / "red" / name).write_bytes(b"other")
        (images / "red/gone.txt").unlink()
        threading.Timer(1.5, draw_image((9, 9, 9), seed=1).save, [new]).start()

    waits = watch(
        gallery, lambda: update_gallery(gallery, config=SMALL), write_others, lambda: new.rename(images / "gone.jpg")
    )
    assert waits[0] > 1.4
    assert waits[1] < 10


def test_a_folder_that_is_made_again_or_late_a_replaced_list_and_a_new_source_are_watched(
    tmp_path: Path, tiny_model: Path
) -> None:
    images, gallery, listed = draw_folder(tmp_path / "images", per_class=2), tmp_path / "gallery", tmp_path / "list.txt"
    other = draw_folder(tmp_path / "other", per_class=1)
    listed.write_text("other/red/0.jpg\n")
    report = build(images, gallery, tiny_model)
    add_to_gallery(gallery, sources=[listed], config=SMALL)
    images.rename(tmp_path / "unmounted")

    def replace_list() -> None:
        (tmp_path / "draft").write_text(listed.read_text() * 2)
        (tmp_path / "draft").replace(listed)

    def mount_and_add() -> None:
        (tmp_path / "unmounted").rename(images)
        add_to_gallery(gallery, sources=[other], config=SMALL)
        replace_list()

    def make_again() -> None:
        shutil.rmtree(images)
        draw_folder(images, per_class=1)

    def drop(folder: Path) -> None:
        draw_image((9, 9, 9), seed=1).save(folder / "new.png")

    steps = (mount_and_add, lambda: drop(other), make_again, lambda: drop(images), replace_list)
    assert max(watch(gallery, lambda: report, *steps)) < 10
