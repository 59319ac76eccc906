"""The peers as real servers, the servers' start and end, and what clients measure of them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.indexing.index_images import list_images
from benchmarks.serving.serve_agreement import ask, compare_answers
from benchmarks.serving.serve_http import build_get
from benchmarks.serving.serve_load import run_load
from benchmarks.serving.serve_peers import PlainSearch
from benchmarks.serving.serve_servers import Server, read_address, run_peer_server, run_server, wait_for
from index.model.embedder import Embedder
from tests.models import PREPROCESS

K = 5


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path, image_folder: Path) -> dict[str, object]:
    """Of a peer that finds the fifteen drawn images, as often as two results of 24 need."""
    embedder, photos = Embedder(tiny_model), list_images(image_folder)
    pixels = [embedder.preprocess(photo.read_bytes(), name=photo.name) for photo in photos]
    np.save(tmp_path / "vectors.npy", np.concatenate([embedder.embed_batch(np.stack(pixels))] * 2))
    (tmp_path / "paths.json").write_text(json.dumps([str(photo) for photo in photos] * 2))
    return {
        "model": str(tiny_model), "vectors": str(tmp_path / "vectors.npy"), "paths": str(tmp_path / "paths.json"),
        "preprocess": PREPROCESS.to_json(),
    }  # fmt: skip


def test_a_peer_finds_what_the_project_would(settings, image_folder: Path) -> None:
    photo = list_images(image_folder)[7]
    search = PlainSearch(settings)
    with Image.open(photo) as image:
        (path, score), *rest = search.find(image, K)
    assert path == str(photo)
    assert score == pytest.approx(1, abs=1e-3)
    assert len(rest) == K - 1


@pytest.mark.parametrize(
    ("name", "own"),
    [("fastapi", {"handler": "def"}), ("fastapi", {"handler": "async def"}),
     pytest.param("gradio", {"at_once": 1}, marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_peer_is_a_server_that_answers_uploads(
    name: str, own, settings, image_folder: Path, tmp_path: Path
) -> None:
    photos = list_images(image_folder)
    log = tmp_path / "peer.log"
    with run_peer_server(name, {**settings, **own, "wait_policy": "PASSIVE"}, log=log) as server:
        assert ask(server, name, photos[7], k=K)[0] == str(photos[7])
        found = run_load({
            "url": server.url, "pid": server.pid, "asking": {name: 1}, "clients": 3, "k": K, "seed": 0,
            "photos": photos, "requests": 20,
        })  # fmt: skip
        same = compare_answers({"a": (server, name), "b": (server, name)}, photos[:3], k=K, first="a")
    assert found["answered"] >= 20
    assert (found["failed"], found["broken"], found["refused"]) == (0, 0, 0)
    assert same["b"]["photos"] == 3


def test_a_server_without_an_address_ends_the_benchmark(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import sys; print('soon'); sys.exit('no such gallery')"]
    with pytest.raises(SystemExit, match="printed no address"), run_server(command, log=log):
        pytest.fail("it has no address")
    assert "no such gallery" in log.read_text()


@pytest.mark.parametrize(
    ("line", "address"), [(b'{"url": "http://h:1"}\n', "http://h:1"), (b"http://h:1", None), (b"[1]", None)]
)
def test_an_address_is_read_from_a_line_of_json(line: bytes, address: str | None) -> None:
    assert read_address(line) == address


def test_a_server_that_never_answers_is_not_waited_for_for_ever() -> None:
    server = Server("http://127.0.0.1:9", 0, time.perf_counter(), 0.0)

    def ask_for_nothing():
        yield build_get("127.0.0.1:9", "/")

    with pytest.raises(SystemExit, match=r"http://127.0.0.1:9: not ready after 0 s; "):
        wait_for(server, ask_for_nothing, within=0.1)
