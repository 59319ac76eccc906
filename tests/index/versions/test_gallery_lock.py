"""Several writers of one gallery: each waits for its turn, says so, and can be stopped meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from index.errors import CancelledError, GalleryError
from index.progress import Progress
from index.versions.gallery_identity import lock_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import ROOT, build

PATIENCE_S = 120


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    images = draw_folder(tmp_path / "images", per_class=2)
    build(images, tmp_path / "gallery", tiny_model)
    draw_image((9, 9, 9), seed=1).save(images / "red" / "new.png")
    return tmp_path / "gallery"


@contextmanager
def command(*words: object) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "retrieval_app", "index", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_command_that_waits_is_interrupted_and_another_one_has_its_turn(gallery: Path) -> None:
    with command("update", gallery) as patient:
        assert patient.stderr is not None
        with lock_gallery(gallery), command("update", gallery) as interrupted:
            assert interrupted.stderr is not None
            told = "another process is writing this gallery; waiting for it, 3600 seconds at most"
            assert told in interrupted.stderr.readline()
            assert "waiting for it" in patient.stderr.readline()
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.wait(PATIENCE_S) == 130
        out, _ = patient.communicate(timeout=PATIENCE_S)
    assert patient.returncode == 0
    assert "7 images" in out


def test_a_wait_tells_how_it_goes_and_is_called_off_from_there(gallery: Path) -> None:
    steps: list[str] = []

    def begin(name: str) -> Progress:
        steps.append(name)

        def tell(done: int, total: int) -> None:
            if len(steps) > 3:
                raise CancelledError("called off")
            steps.append("waiting")

        return tell

    with lock_gallery(gallery), pytest.raises(CancelledError), lock_gallery(gallery, begin_step=begin):
        pass
    assert steps[0] == "Waiting for another process that writes this gallery"


def test_a_lock_that_is_let_go_of_is_taken(gallery: Path) -> None:
    held, taken = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_gallery(gallery):
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(PATIENCE_S)
    with lock_gallery(gallery, wait_s=PATIENCE_S):
        taken.set()
    thread.join()
    assert taken.is_set()


def test_without_patience_the_lock_is_tried_once(gallery: Path) -> None:
    refused = pytest.raises(GalleryError, match="wait for it or stop it")
    with lock_gallery(gallery), refused, lock_gallery(gallery, wait_s=0):
        pass
