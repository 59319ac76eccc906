"""A server in health and in trouble: what it tells, that nothing is lost, and that it goes on."""

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
from retrieval_app.serving.errors import is_disk_full
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build
from tests.retrieval_app.api.conftest import TOKEN, serve
from tests.retrieval_app.api.test_gallery_routes import finish
from tests.retrieval_app.review.test_jobs import picture


def test_a_gallery_that_cannot_be_searched_is_not_ready(served: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(served, copy)
    friend = {"Authorization": f"Bearer {TOKEN}"}
    with serve(copy, access=Access(token=TOKEN)) as client:
        ready = client.get("/v1/ready").json()
        assert (ready["status"], ready["version"], ready["problem"]) == ("ready", "000001", None)
        (catalog,) = copy.glob("versions/*/catalog.sqlite")
        catalog.chmod(0o600)
        with catalog.open("r+b") as file:  # the file that the server has open
            file.write(bytes(file.seek(0, 2)))
            file.seek(0)
            file.write(b"no database" * 1000)
        deadline = time.monotonic() + 20  # what was found before is told for a moment
        while (stranger := client.get("/v1/ready")).status_code == 200:
            assert time.monotonic() < deadline
        told = client.get("/v1/ready", headers=friend)
        assert stranger.status_code == told.status_code == 503
        assert stranger.json()["error"]["code"] == told.json()["error"]["code"] == "not_ready"
        assert stranger.headers["retry-after"]
        assert str(copy) in told.json()["error"]["message"]
        assert str(copy) not in stranger.text
        assert client.get("/v1/health").json() == {"status": "alive"}


DISK_BYTES = 16 * 1024 * 1024
PNG = picture(77)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
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
        for answer in (client.post("/v1/images", content=PNG), client.post("/v1/labels/decisions", json=decide)):
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
    assert not any(map(is_disk_full, (OSError(errno.EACCES, "no"), InputError("x"), sqlite3.OperationalError("x"))))
    loop = InputError("x")
    loop.__cause__ = loop
    assert not is_disk_full(loop)
