"""The Gradio app of the real server: asked by `gradio_client`, and used in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from index.gallery.gallery import Gallery
from tests.gradio_clients import connect
from tests.page_browser import OpenVisit, Visit, skip_without_browser
from tests.serving_server import TOKEN, Server, serve

pytestmark = pytest.mark.browser
skip_without_browser()
from gradio_client import Client, handle_file  # noqa: E402
from gradio_client.exceptions import AppError  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

READY_MS = 60_000


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
    by_picture = client.predict(image=handle_file(tmp_path / "copy.png"), k=6, by="picture", api_name="/search")
    assert by_picture[0]["id"] == own
    assert by_picture[0]["is_copy"]


def test_a_client_gets_vectors_quality_and_doubts(two: Gallery, client: Client) -> None:
    file = two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path
    vector = client.predict(handle_file(file), api_name="/embed")
    assert len(vector) == two.width
    assert client.predict(api_name="/evaluate")["recall_at"][0]["k"] == 1
    assert client.predict(api_name="/labels")["judged"] > 0


def test_the_endpoints_are_those_four(client: Client) -> None:
    named = client.view_api(return_format="dict")["named_endpoints"]
    assert set(named) == {"/search", "/embed", "/evaluate", "/labels"}


def test_a_client_is_told_what_it_did_wrong(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="either a photo or the id"):
        client.predict(image=None, image_id=None, api_name="/search")
    (tmp_path / "page.jpg").write_text("<html>")
    with pytest.raises(AppError, match="the photo: "):
        client.predict(image=handle_file(tmp_path / "page.jpg"), image_id=None, api_name="/search")


@pytest.mark.parametrize(
    "named", [{"path": "FILE"}, {"path": "FILE", "meta": {"_type": "gradio.FileData"}}, {"url": "URL"}, "FILE"]
)
def test_a_client_cannot_name_a_file_of_the_machine_or_an_address(
    open_server: Server, two: Gallery, named: dict | str
) -> None:
    file = str(two.path.parent / "images" / two.rows([int(two.ids[0])])[0].path)
    text = str(named).replace("'", '"').replace("FILE", file).replace("URL", f"{open_server.url}/page/icon.svg")
    body = f'{{"data": [{text if text.startswith("{") else f"{chr(34)}{text}{chr(34)}"}, null, 3, "", "kind"]}}'
    headers = {"Content-Type": "application/json"}
    begun = open_server.ask("POST", "/gradio/gradio_api/call/search", body=body.encode(), headers=headers)
    event = begun.json()["event_id"]
    answer = open_server.get(f"/gradio/gradio_api/call/search/{event}").body.decode()
    assert "event: error" in answer
    assert "score" not in answer


def test_no_file_that_a_client_names_is_copied_to_where_it_could_be_got(
    open_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text(secret := f"of {tmp_path}")
    named = {"path": str(tmp_path / "secret.txt"), "meta": {"_type": "gradio.FileData"}}
    for data in ([None, 1, 3, named, "kind"], [None, 1, 3, "", named], [None, named, 3, "", "kind"]):
        begun = open_server.post("/gradio/gradio_api/call/search", {"data": data}).json()["event_id"]
        assert "event: error" in open_server.get(f"/gradio/gradio_api/call/search/{begun}").body.decode()
    kept = Path(gettempdir()).glob("*gradio*/*/secret.txt")
    assert not [file for file in kept if file.read_text() == secret]


def test_a_client_sends_a_photo_of_twelve_million_pixels(two: Gallery, client: Client, tmp_path: Path) -> None:
    own = int(two.ids[0])
    file = two.path.parent / "images" / two.rows([own])[0].path
    Image.open(file).convert("RGB").resize((4000, 3000)).save(tmp_path / "large.jpg")
    hits = client.predict(image=handle_file(tmp_path / "large.jpg"), image_id=None, k=3, api_name="/search")
    assert hits[0]["label"] == two.rows([own])[0].label


def test_the_command_that_use_via_api_shows_is_answered(two: Gallery, open_server: Server) -> None:
    asked = {"image": None, "image_id": int(two.ids[0]), "k": 2, "where": "", "by": "kind"}
    begun = open_server.post("/gradio/gradio_api/call/v2/search", asked)
    assert begun.status == 200, begun
    answer = open_server.get(f"/gradio/gradio_api/call/search/{begun.json()['event_id']}")
    assert b"event: complete" in answer.body


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


def test_without_the_token_nothing_of_it_answers(two: Gallery, tmp_path: Path) -> None:
    with serve(two.path, log=tmp_path / "log", token=TOKEN) as server:
        outsider = Server(server.process, server.port, None, server.log, server.output)
        assert outsider.get("/gradio/").status == 401
        assert outsider.get("/gradio/config").status == 401
        assert outsider.ask("POST", "/gradio/gradio_api/queue/join", json={}).status == 401
        with connect(server, headers=server.headers()) as client:
            assert client.predict(image=None, image_id=int(two.ids[0]), k=2, api_name="/search")
        assert server.stop() == 0


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
    expect(page.get_by_text("most like the photo")).to_be_visible(timeout=READY_MS)  # it asks as it is dropped
    expect(results.first).to_contain_text("1.00")
    page.get_by_label("This very picture").check()
    expect(results.first).to_contain_text("a copy", timeout=READY_MS)
    page.get_by_label("Only images with").fill("label = 'red'")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("5 images most like the photo")).to_be_visible(timeout=READY_MS)
    page.get_by_label("Only images with").fill("")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("15 images most like the photo")).to_be_visible(timeout=READY_MS)
    expect(results).to_have_count(15)
    results.first.click()
    expect(page.get_by_text("most like image")).to_be_visible(timeout=READY_MS)
    page.get_by_role("tab", name="Quality").click()
    page.get_by_role("button", name="Measure Recall@K").click()
    expect(page.get_by_text("labelled images asked")).to_be_visible(timeout=READY_MS)
    page.get_by_role("tab", name="Labels").click()
    page.get_by_role("button", name="Judge the labels").click()
    expect(page.get_by_text(re.compile(r"Of \d+ labels"))).to_be_visible(timeout=READY_MS)
    visit.leave()


def test_a_server_with_an_open_gradio_page_ends_at_once(
    two: Gallery, open_visit: OpenVisit, tmp_path: Path
) -> None:
    with serve(two.path, log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        visit.page.goto(f"{server.url}/gradio/")
        expect(visit.page.get_by_role("tab", name="Labels")).to_be_visible(timeout=READY_MS)
        visit.forgive(".*")  # its page misses the server
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()
