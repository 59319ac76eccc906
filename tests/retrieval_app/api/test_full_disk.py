"""A server whose disk is full: told as such, nothing is lost, and it goes on when there is room again."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.errors import InputError
from retrieval_app.api.security.access import Access
from retrieval_app.review.full_disks import is_disk_full
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build
from tests.retrieval_app.api.conftest import TOKEN, serve
from tests.retrieval_app.api.gallery.test_write_routes import finish
from tests.retrieval_app.review.test_jobs import picture

DISK_BYTES = 16 * 1024 * 1024
PNG = picture(77)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(words, check=False).returncode:
        pytest.skip("file systems can be mounted by the administrator only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Use up every byte of it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler


def test_a_full_disk_is_told_and_work_goes_on_after(small_disk: Path, tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=3)
    build(images, small_disk / "gallery", tiny_model)
    with serve(small_disk / "gallery", access=Access(token=TOKEN, writable=True)) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        ids = [image["id"] for image in client.get("/v1/images").json()["images"]]
        decide = {"decisions": [{"image_id": ids[0], "decision": "keep"}]}
        filler = fill(small_disk)
        for answer in (
            client.post("/v1/images", content=PNG),
            client.post("/v1/labels/decisions", json=decide),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full"), answer.text
        draw_image((1, 2, 3), seed=3).save(images / "red" / "new.png")
        failed = finish(client, client.post("/v1/update").json())
        assert failed["state"] == "failed"
        assert "the disk is full" in str(failed["message"])
        assert len(client.get("/v1/images").json()["images"]) == len(ids)
        filler.unlink()
        assert finish(client, client.post("/v1/update").json())["state"] == "done"
        assert finish(client, client.post("/v1/images", content=PNG).json())["state"] == "done"
        assert client.post("/v1/labels/decisions", json=decide).status_code == 200
        assert len(client.get("/v1/images").json()["images"]) == len(ids) + 2


def test_a_full_disk_is_known_by_what_an_error_was_raised_from() -> None:
    full, quota = OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota")
    wrapped = InputError("it cannot be kept")
    wrapped.__cause__ = full
    assert all(map(is_disk_full, (full, quota, wrapped)))
    assert not any(
        map(is_disk_full, (OSError(errno.EACCES, "no"), InputError("x"), sqlite3.OperationalError("x")))
    )
    loop = InputError("x")
    loop.__cause__ = loop
    assert not is_disk_full(loop)


def test_a_log_that_cannot_be_written_costs_no_decision_and_no_time(tmp_path: Path, tiny_model: Path) -> None:
    build(draw_folder(tmp_path / "images"), tmp_path / "gallery", tiny_model)
    (tmp_path / "gallery" / "people").mkdir(exist_ok=True)
    (tmp_path / "gallery" / "people" / "log").write_text("in the way")
    with serve(tmp_path / "gallery", access=Access()) as client:
        begun = time.monotonic()
        for label in ("hat", "shoe", "coat"):
            body = {"decisions": [{"image_id": 1, "decision": "change", "label": label}]}
            assert client.post("/v1/labels/decisions", json=body).status_code == 200
        assert time.monotonic() - begun < 5
        decided = client.get("/v1/labels/decisions").json()["decisions"]
    assert [decision["new_label"] for decision in decided] == ["coat"]
