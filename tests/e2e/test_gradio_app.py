"""`retrieval gradio`: called by `gradio_client`, and used in a real Chromium."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from playwright.sync_api import expect

from index.gallery.gallery import Gallery
from tests.forked import run
from tests.page_browser import OpenVisit, Visit
from tests.serving_server import Server, serve

pytestmark = pytest.mark.browser

READY_MS = 60_000


@contextmanager
def connect(server: Server) -> Iterator[Client]:
    """A client, whose threads end here rather than when it is collected."""
    client = Client(server.url, verbose=False)
    try:
        yield client
    finally:
        for pool in (client.executor, client.helper_executor, client.stream_executor):
            pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(scope="module")
def open_server(two: Gallery) -> Iterator[Server]:
    with serve(two.path, log=two.path.parent / "log", command="gradio") as server:
        yield server


@pytest.fixture(scope="module")
def client(open_server: Server) -> Iterator[Client]:
    with connect(open_server) as client:
        yield client


def test_a_client_searches_by_id_by_file_and_by_a_copy(two: Gallery, client: Client, tmp_path: Path) -> None:
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


def test_a_client_is_told_what_it_did_wrong(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="a photo, the id of an image of the gallery, or words"):
        client.predict(image=None, image_id=None, api_name="/search")
    (tmp_path / "page.jpg").write_text("<html>")
    with pytest.raises(AppError, match="the photo: "):
        client.predict(image=handle_file(tmp_path / "page.jpg"), image_id=None, api_name="/search")


def test_a_client_can_name_no_file_of_the_machine_or_address(open_server: Server, two: Gallery, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(secret := f"of {tmp_path}")
    named = {"path": str(tmp_path / "secret.txt"), "meta": {"_type": "gradio.FileData"}}
    photo = str(two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path)
    pictures = [photo, {"path": photo}, {"path": photo, "meta": named["meta"]}]
    pictures.append({"url": f"{open_server.url}/config"})
    calls = [[picture, None, 3, "", "semantic"] for picture in pictures]
    for data in (*calls, [None, 1, 3, named, "semantic"], [None, 1, 3, "", named], [None, named, 3, "", "semantic"]):
        begun = open_server.post("/gradio_api/call/search", {"data": data}).json()["event_id"]
        answer = open_server.get(f"/gradio_api/call/search/{begun}").body.decode()
        assert "event: error" in answer
        assert "score" not in answer
    kept = Path(gettempdir()).glob("*gradio*/*/secret.txt")
    assert not [file for file in kept if file.read_text() == secret]


def test_what_visitors_send_is_gone_with_the_server(two: Gallery, tmp_path: Path) -> None:
    def list_sent() -> set[Path]:
        return set(Path(gettempdir()).glob("retrieval-gradio-*/*/mine-alone.jpg"))

    file = two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path
    (tmp_path / "mine-alone.jpg").write_bytes(file.read_bytes())
    with serve(two.path, log=tmp_path / "log", command="gradio") as server, connect(server) as client:
        client.predict(image=handle_file(tmp_path / "mine-alone.jpg"), image_id=None, k=1, api_name="/search")
        sent = list_sent()
        assert sent
        assert server.stop() == 0
    assert not sent & list_sent()


def test_no_file_of_the_machine_is_read_and_no_other_site_reaches_the_app(open_server: Server) -> None:
    outside = ("file=/etc/passwd", "file=/proc/self/environ", "file=/tmp/../etc/passwd", "proxy=file:///etc/passwd")
    for path in (*(f"/gradio_api/{name}" for name in outside), "/assets/../../../../etc/passwd"):
        answer = open_server.get(path)
        assert answer.status in (400, 403, 404, 422), path
        assert b"root:" not in answer.body
    assert open_server.get("/config", Host="evil.example").status == 400
    assert open_server.get("/config", Origin="https://evil.example").headers.get("access-control-allow-origin") is None


def test_only_the_own_page_uploads_and_calls(open_server: Server) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="sent.jpg"\r\n\r\nof a page\r\n--x--\r\n'
    of_form, called = {"Content-Type": "multipart/form-data; boundary=x"}, {"data": [None, 1, 3, "", "semantic"]}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/gradio_api/upload", {"body": form}),
        ("POST", "/gradio_api/call/search", {"json": called}),
        ("POST", "/gradio_api/queue/join", {"json": {**called, "fn_index": 0, "session_hash": "elsewhere"}}),
        ("GET", "/gradio_api/info", {}),
    ]
    evil, own = "https://evil.example", open_server.url
    for headers, status in (
        ({"Origin": evil, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": evil}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": own, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": own}, 200),
    ):
        for method, path, options in requests:
            all_headers = {**headers, **(of_form if "body" in options else {})}
            assert open_server.ask(method, path, **options, headers=all_headers).status == status, (path, headers)
    assert open_server.get("/", **{"Sec-Fetch-Site": "cross-site"}).status == 200  # by a link


def test_a_port_in_use_is_named(open_server: Server, two: Gallery) -> None:
    done = run(["gradio", two.path, "--port", open_server.port])
    assert (done.returncode, f"--port {open_server.port}: already in use" in done.stderr) == (1, True)


def test_a_visitor_searches_and_goes_on_from_a_result(two: Gallery, open_server: Server, open_visit: OpenVisit) -> None:
    visit: Visit = open_visit(server=open_server)
    visit.forgive("GL Driver Message|WebGL")
    page = visit.page
    page.goto(f"{open_server.url}/")
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
    visit.leave()
