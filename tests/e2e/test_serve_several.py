"""Two galleries on one real server, as the command line names them: their pages, and a Gradio app of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.gradio_clients import connect
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import Server, serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Two galleries, of which one has another image too."""
    folder = tmp_path_factory.mktemp("several")
    for name in ("shop", "fashion"):
        (folder / name).mkdir()
        build_small_gallery(folder / name, model=tiny_model)
    draw_image((10, 250, 250), seed=7001).save(folder / "fashion/images/red/7001.png")
    update_gallery(folder / "fashion/small")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of both, the first by the name of its folder."""
    with serve(f"{folder}/shop/small", f"other={folder}/fashion/small", log=folder / "log") as server:
        yield server
        assert "Traceback" not in server.log.read_text()


def test_both_have_a_gradio_app_of_their_own_whoever_comes_first(server: Server, folder: Path) -> None:
    client = pytest.importorskip("gradio_client")
    names = ("small", "other")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: server.get(f"/g/{name}/gradio/config"), names))
    photo = client.handle_file(str(folder / "fashion/images/red/7001.png"))
    with ExitStack() as stack:
        apps = [stack.enter_context(connect(server, f"/g/{name}/gradio/")) for name in names]
        firsts = [app.predict(image=photo, image_id=None, k=1, api_name="/search")[0] for app in (*apps, apps[0])]
    assert [first["name"].endswith("7001.png") for first in firsts] == [False, True, False]


def test_without_tokens_all_are_open_and_a_wrong_name_is_told(server: Server) -> None:
    told = json.loads(server.output)
    assert told["galleries"] == {name: f"{told['url']}g/{name}/" for name in ("small", "other")}
    assert [entry["name"] for entry in server.get("/v1/galleries").json()["galleries"]] == ["small", "other"]
    assert server.get("/g/other").headers["location"] == "/g/other/"
    for path in ("/g/nowhere/", "/g/nowhere/v1/gallery", "/g/", "/v1/gallery"):
        assert server.get(path).status == 404, path
    page = server.get("/g/other/").body.decode()
    assert ('href="../../"' in page, "<title>other" in page) == (True, True)
