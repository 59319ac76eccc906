"""The Gradio app of the real server: asked by `gradio_client`, and used in a real Chromium."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from playwright.sync_api import expect

from index.gallery.gallery import Gallery
from tests.page_browser import OpenVisit, Visit
from tests.serving_server import TOKEN, Server, serve

pytestmark = pytest.mark.browser

READY_MS = 60_000


@contextmanager
def connect(server: Server, app: str = "/gradio/", **options: Any) -> Iterator[Client]:
    """A client of that app, whose threads end here rather than when it is collected."""
    client = Client(f"{server.url}{app}", verbose=False, **options)
    try:
        yield client
    finally:
        for pool in (client.executor, client.helper_executor, client.stream_executor):
            pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(scope="module")
def open_server(two: Gallery) -> Iterator[Server]:
    with serve(two.path, log=two.path.parent / "log") as server:
        yield server


@pytest.fixture(scope="module")
def client(open_server: Server) -> Iterator[Client]:
    with connect(open_server) as client:
        yield client


def test_a_client_searches_by_id_by_file_and_by_a_picture_in_memory(
    two: Gallery, client: Client, tmp_path: Path
) -> None:
    own = int(two.ids[0])
    file = two.path.parent / "images" / two.rows([own])[0].path
    by_id = client.predict(image_id=own, k=5, api_name="/search")
    assert own not in [hit["id"] for hit in by_id]
    by_file = client.predict(handle_file(file), api_name="/search")
    assert (by_file[0]["id"], len(by_file)) == (own, 10)
    assert by_file[0]["score"] == pytest.approx(1, abs=1e-4)
    Image.open(file).save(tmp_path / "copy.png")
    by_copy = client.predict(image=handle_file(tmp_path / "copy.png"), k=6, by="copy", api_name="/search")
    assert by_copy[0]["id"] == own
    assert by_copy[0]["is_copy"]


def test_a_client_gets_vectors_quality_and_label_issues(two: Gallery, client: Client) -> None:
    file = two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path
    assert len(client.predict(handle_file(file), api_name="/embed")) == two.width
    assert client.predict(api_name="/evaluate")["recall_at"][0]["k"] == 1
    assert client.predict(api_name="/labels")["checked"] > 0


def test_a_client_is_told_what_it_did_wrong(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="either a photo or the id"):
        client.predict(image=None, image_id=None, api_name="/search")
    (tmp_path / "page.jpg").write_text("<html>")
    with pytest.raises(AppError, match="the photo: "):
        client.predict(image=handle_file(tmp_path / "page.jpg"), image_id=None, api_name="/search")


def test_a_client_cannot_name_a_file_of_the_machine_or_an_address_and_none_is_copied(
    open_server: Server, two: Gallery, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text(secret := f"of {tmp_path}")
    named = {"path": str(tmp_path / "secret.txt"), "meta": {"_type": "gradio.FileData"}}
    photo = str(two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path)
    pictures = [photo, {"path": photo}, {"path": photo, "meta": named["meta"]}]
    pictures.append({"url": f"{open_server.url}/page/icon.svg"})
    calls = [[picture, None, 3, "", "semantic"] for picture in pictures]
    for data in (*calls, [None, 1, 3, named, "semantic"], [None, 1, 3, "", named], [None, named, 3, "", "semantic"]):
        begun = open_server.post("/gradio/gradio_api/call/search", {"data": data}).json()["event_id"]
        answer = open_server.get(f"/gradio/gradio_api/call/search/{begun}").body.decode()
        assert "event: error" in answer
        assert "score" not in answer
    kept = Path(gettempdir()).glob("*gradio*/*/secret.txt")
    assert not [file for file in kept if file.read_text() == secret]


def test_what_visitors_send_is_gone_with_the_server(two: Gallery, tmp_path: Path) -> None:
    def list_sent() -> set[Path]:
        return set(Path(gettempdir()).glob("retrieval-gradio-*/*/mine-alone.jpg"))

    file = two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path
    (tmp_path / "mine-alone.jpg").write_bytes(file.read_bytes())
    with serve(two.path, log=tmp_path / "log") as server, connect(server) as client:
        client.predict(image=handle_file(tmp_path / "mine-alone.jpg"), image_id=None, k=1, api_name="/search")
        sent = list_sent()
        assert sent
        assert server.stop() == 0
    assert not sent & list_sent()


def test_two_galleries_have_a_gradio_app_each_whoever_comes_first_and_neither_answers_without_the_token(
    two: Gallery, gallery: Path, tmp_path: Path
) -> None:
    photo = handle_file(two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path)
    with ExitStack() as stack:
        server = stack.enter_context(serve(f"one={two.path}", f"other={gallery}", log=tmp_path / "log", token=TOKEN))
        for path in ("/g/one/gradio/", "/g/one/gradio/config"):
            assert server.get(path, Authorization="").status == 401
        assert server.ask("POST", "/g/one/gradio/gradio_api/queue/join", headers={"Authorization": ""}).status == 401
        names = ("one", "other")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: server.get(f"/g/{name}/gradio/config"), names))
        apps = [stack.enter_context(connect(server, f"/g/{name}/gradio/", headers=server.headers())) for name in names]
        found = [app.predict(image=photo, image_id=None, k=500, api_name="/search") for app in (*apps, apps[0])]
        assert [len(hits) for hits in found] == [15, 19, 15]


def test_a_visitor_searches_goes_on_from_a_result_and_sees_quality_and_labels(
    two: Gallery, open_server: Server, open_visit: OpenVisit
) -> None:
    visit: Visit = open_visit(server=open_server)
    visit.forgive("GL Driver Message|WebGL")
    page = visit.page
    page.goto(f"{open_server.url}/")
    page.get_by_role("link", name="Gradio").click()
    results = page.locator(".grid-container button.thumbnail-item, .grid-container button").locator("visible=true")
    expect(results.first).to_be_visible(timeout=READY_MS)
    file = two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path
    page.set_input_files("input[type=file]", file)
    expect(page.get_by_text("most similar to the photo")).to_be_visible(timeout=READY_MS)  # it asks as it is dropped
    expect(results.first).to_contain_text("1.00")
    page.get_by_label("Copies of this image").check()
    expect(results.first).to_contain_text("a copy", timeout=READY_MS)
    page.get_by_label("Only images with").fill("label = 'red'")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("5 images most similar to the photo", exact=True)).to_be_visible(timeout=READY_MS)
    page.get_by_label("Only images with").fill("")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("15 images most similar to the photo", exact=True)).to_be_visible(timeout=READY_MS)
    expect(results).to_have_count(15)
    results.first.click()
    expect(page.get_by_text("most similar to image")).to_be_visible(timeout=READY_MS)
    page.get_by_role("tab", name="Quality").click()
    page.get_by_role("button", name="Measure Recall@K").click()
    expect(page.get_by_text("labelled images were the queries")).to_be_visible(timeout=READY_MS)
    page.get_by_role("tab", name="Labels").click()
    page.get_by_role("button", name="Find label issues").click()
    expect(page.get_by_text(re.compile(r"Of \d+ labels"))).to_be_visible(timeout=READY_MS)
    visit.leave()
