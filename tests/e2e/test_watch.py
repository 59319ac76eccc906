"""Watched folders: what is dropped there is found, whatever happens to the process, also where no notices come."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from index.gallery.verify import verify_gallery
from index.versions.versions import find_version
from tests.conftest import draw_folder, draw_image
from tests.forked import ForkedCommand
from tests.index.galleries import ROOT, build, rows
from tests.page_browser import open_page
from tests.serving_server import serve
from tests.waiting import wait_for

DROPPED = 120


@pytest.fixture
def images(tmp_path: Path, tiny_model: Path) -> Path:
    """Six images, with the gallery `gallery` beside them."""
    folder = draw_folder(tmp_path / "images", per_class=2)
    build(folder, tmp_path / "gallery", tiny_model)
    return folder


def drop(folder: Path, count: int, *, start: int = 0) -> list[str]:
    """Write images into a folder of the images, as a camera does; their paths."""
    (folder / "new").mkdir(exist_ok=True)
    names = [f"new/{start + number}.png" for number in range(count)]
    for number, name in enumerate(names):
        draw_image((90, 40, 200), seed=5000 + start + number).save(folder / name)
    return names


def find(gallery: Path) -> list[str]:
    return [row.path for row in rows(gallery) if row.status == "indexed"]


@contextmanager
def watch(images: Path, *options: object) -> Iterator[tuple[ForkedCommand, Path]]:
    """The command, which runs, and the file of what it says."""
    log = images.parent / "log"
    with log.open("a") as errors, open(os.devnull, "w") as nothing:
        words = ["index", "watch", images.parent / "gallery", "--no-cache", *options]
        process = ForkedCommand(words, stdout=nothing.fileno(), stderr=errors.fileno())
        try:
            yield process, log
        finally:
            process.kill()
            process.wait()


def test_dropped_images_are_found_once_through_kills(images: Path) -> None:
    gallery, dropped = images.parent / "gallery", list[str]()
    for number in range(3):
        with watch(images, "--checkpoint-images", 8) as (process, _):
            dropped += drop(images, DROPPED, start=DROPPED * number)
            wait_for(lambda: list((gallery / "building/checkpoints").glob("*.npy")))  # in the middle of an update
            process.kill()
    with watch(images) as (process, log):
        wait_for(lambda: set(dropped) <= set(find(gallery)))
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
        assert find_version(gallery).name in log.read_text().splitlines()[-1]
    assert set(Counter(find(gallery)).values()) == {1}
    assert len({row.id for row in rows(gallery)}) == len(dropped) + 6
    assert verify_gallery(gallery).problems == []


def test_many_changes_are_one_version_or_two_and_a_half_written_file_becomes_whole(images: Path) -> None:
    gallery, whole = images.parent / "gallery", (images / "red/0.jpg").read_bytes()
    with watch(images):
        time.sleep(3)  # the scan of its start
        for number in range(8):
            drop(images, 5, start=5 * number)
            time.sleep(0.5)
        with (images / "slow.jpg").open("wb") as file:
            for start in range(0, len(whole), 100):
                file.write(whole[start : start + 100])
                file.flush()
                time.sleep(0.2)
        wait_for(lambda: "slow.jpg" in find(gallery))
        assert find_version(gallery).name in ("000002", "000003"), "two where quiet or the end of it comes late"
        (images / "slow.jpg").unlink()
        wait_for(lambda: "slow.jpg" not in find(gallery))


def test_without_notices_scans_find_what_changed(images: Path) -> None:
    """As on a network drive, where a file may also be half there at a scan."""
    gallery, whole = images.parent / "gallery", (images / "red/0.jpg").read_bytes()
    with watch(images, "--no-notices", "--scan-every", 2):
        (images / "slow.jpg").write_bytes(whole[: len(whole) // 2])
        wait_for(lambda: any(row.path == "slow.jpg" and row.status == "skipped" for row in rows(gallery)))
        (images / "slow.jpg").write_bytes(whole)
        dropped = drop(images, 5)
        wait_for(lambda: {*dropped, "slow.jpg"} <= set(find(gallery)))


def test_at_the_limit_of_notices_it_says_what_to_raise_and_scans(images: Path) -> None:
    limit = "echo 2 > /proc/sys/user/max_inotify_watches"
    if subprocess.run(["unshare", "-Ur", "sh", "-c", limit], check=False, capture_output=True).returncode:
        pytest.skip("no limit of our own may be set here")
    words = [sys.executable, "-m", "retrieval_app", "index", "watch", str(images.parent / "gallery"), "--no-cache"]
    script = f'{limit}; exec "$@"'
    log = images.parent / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            ["unshare", "-Ur", "sh", "-c", script, "-", *words, "--scan-every", "2"], cwd=ROOT, stderr=errors
        ) as process,
    ):
        try:
            wait_for(lambda: "sudo sysctl fs.inotify.max_user_watches=" in log.read_text())
            dropped = drop(images, 5)
            wait_for(lambda: set(dropped) <= set(find(images.parent / "gallery")))
        finally:
            process.kill()


@pytest.mark.browser
def test_the_page_offers_new_images_of_a_watched_folder(images: Path, browser: Browser) -> None:
    with serve(images.parent / "gallery", "--watch", log=images.parent / "log") as server:
        visit = open_page(browser, server)
        page = visit.open()
        expect(page.get_by_role("heading", name="All 6 images")).to_be_visible()
        drop(images, 12)
        offer = page.get_by_role("link", name="12 new images since")
        expect(offer).to_be_visible()
        expect(page.locator(".facts")).to_contain_text("18 images")
        offer.click()
        new = [row.id for row in rows(images.parent / "gallery") if row.path.startswith("new/")]
        visit.wait_until(lambda: visit.ids() == new)
        page.go_back()
        expect(page.get_by_role("heading", name="All 18 images")).to_be_visible()
        expect(offer).to_be_hidden()
        visit.leave()
        visit.check()
    assert "Traceback" not in (images.parent / "log").read_text()
