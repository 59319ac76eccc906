from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest

from index.gallery import Gallery
from retrieval_app.service import MAX_UPLOAD_BYTES, Query, SearchService
from tests.retrieval_app.conftest import VANISHED

pytest.importorskip("gradio", reason="needs the extra `ui`")
from fastapi import FastAPI
from gradio import processing_utils
from starlette.testclient import TestClient

from retrieval_app.web import UPLOADS_HELD, create_app

REFUSED = "this page does not serve that address"
JOIN = "/gradio_api/queue/join"
FILE = {"path": "http://127.0.0.1:9/a.png", "meta": {"_type": "gradio.FileData"}}
NESTED = (FILE, [FILE], {"a": [FILE]}, [], {}, {"url": FILE["path"]})


@pytest.fixture(scope="module")
def client(gallery: Gallery) -> Iterator[TestClient]:
    async def build() -> FastAPI:  # Gradio leaves an event loop open where none is running
        return create_app(SearchService(gallery))

    with TestClient(asyncio.run(build()), base_url="http://127.0.0.1:7860") as client:
        yield client


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs that Gradio fetches from now on; none is really asked."""
    urls: list[str] = []

    async def note(url: str, cache_dir: str) -> str:
        urls.append(url)
        raise ValueError("not fetched")

    monkeypatch.setattr(processing_utils, "async_ssrf_protected_download", note)
    return urls


def answer_event(client: TestClient, event: dict[str, object]) -> dict[str, object]:
    """Queue an event of a visitor and wait for what the page would be told in the end."""
    joined = client.post(JOIN, json={"session_hash": "visitor", **event})
    assert joined.status_code == 200
    told = client.get("/gradio_api/queue/data", params={"session_hash": "visitor"}).text
    messages = [json.loads(line.removeprefix("data: ")) for line in told.splitlines() if line]
    return next(message for message in messages if message["msg"] == "process_completed")


def test_the_page_is_served_with_headers_that_keep_the_network_out(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "Find images like yours" in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_a_thumbnail_is_webp_and_asked_for_again_costs_no_bytes(client: TestClient, ids: dict[str, int]) -> None:
    answer = client.get(f"/thumb/{ids['red/0.jpg']}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/webp")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content[:4] == b"RIFF"
    again = client.get(f"/thumb/{ids['red/0.jpg']}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_thumbnail_of_an_unknown_or_vanished_image_is_not_found(client: TestClient, ids: dict[str, int]) -> None:
    for image_id in (ids[VANISHED], 10**17):
        answer = client.get(f"/thumb/{image_id}")
        assert answer.status_code == 404
        assert answer.text == f"image {image_id}: unknown, or its file is gone or damaged"


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=http://127.0.0.1:9/x",
        "/gradio_api/file=https://example.com/x.png",
        "/gradio_api/file=/etc/hostname",
        "/gradio_api/proxy=https://example.com/",
        "/gradio_api/upload_progress",
        "/gradio_api/vibe-code/",
        "/gradio_api/runs",
        "/gradio_api/info",
        "/gradio_api/cancel",
        "/monitoring",
        "/docs",
        "/openapi.json",
        "/thumb/..%2f..%2fetc%2fhostname",
        "/thumb/" + "9" * 30,
        "//thumb/1",
    ],
)
def test_addresses_that_the_page_does_not_need_are_refused(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (404, REFUSED)


def test_gradio_takes_no_uploads(client: TestClient) -> None:
    answer = client.post("/gradio_api/upload", files={"files": b"data"})
    assert (answer.status_code, answer.text) == (404, REFUSED)


def test_another_name_for_this_machine_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "attacker.example:7860"}).status_code == 400


def test_an_upload_gives_a_ref_and_its_picture(client: TestClient, gallery: Gallery) -> None:
    data = (gallery.sources[1].root / "red/0.jpg").read_bytes()
    answer = client.post("/query", params={"name": "a.jpg"}, content=data)
    kind, _, token = answer.json()["ref"].partition(":")
    assert (answer.status_code, kind) == (200, "upload")
    assert client.get(f"/query/{token}").content[:4] == b"RIFF"
    assert client.get(f"/query/{'0' * 16}").status_code == 404


def test_an_upload_that_is_no_image_is_refused_in_words(client: TestClient) -> None:
    answer = client.post("/query", params={"name": "notes.jpg"}, content=b"dear diary")
    assert answer.status_code == 422
    assert answer.json()["message"].startswith("notes.jpg: the content is none of")


def test_bodies_without_a_length_or_beyond_the_limit_are_refused(client: TestClient) -> None:
    assert client.post("/query", content=iter([b"a", b"b"])).status_code == 411
    answer = client.post("/query", content=b"a", headers={"Content-Length": str(MAX_UPLOAD_BYTES * 2)})
    assert (answer.status_code, answer.json()) == (413, {"message": "at most 20 MB are taken"})


def test_a_length_beside_a_body_in_chunks_is_not_believed(client: TestClient) -> None:
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    assert client.post("/query", content=b"ab", headers=headers).status_code == 411


def test_no_event_may_carry_a_file_that_gradio_would_fetch(client: TestClient, fetched: list[str]) -> None:
    handlers = client.get("/config").json()["dependencies"]
    assert len(handlers) == 8
    for handler in handlers:
        plain: dict[str, object] = {"fn_index": handler["id"], "trigger_id": handler["targets"][0][0]}
        data: list[object] = [None, 24, None]
        events: list[dict[str, object]] = []
        for nested in NESTED:
            events += [{"data": [*data[:i], nested, *data[i + 1 :]]} for i in range(len(data))]
            events += [{"data": data, "event_data": {name: nested}} for name in ("id", "ref", "message", "url")]
            events += [{"data": data, "session_hash": nested}, {"data": {"0": nested}}]
        events += [{"data": data, "event_data": FILE}, {"data": data, "event_data": [FILE]}]
        for event in events:
            answer = client.post(JOIN, json={"session_hash": "visitor", **plain, **event})
            assert (answer.status_code, answer.json()) == (400, {"message": "this is no event of the page"})
    answer_event(client, {"fn_index": 7, "data": [None]})  # by now the queue has run dry
    assert fetched == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 50_000, b'{"fn_index":0}', b'{"data":[],"oauth_token":"a"}']
)
def test_events_that_the_page_never_sends_are_refused(client: TestClient, body: bytes) -> None:
    assert client.post(JOIN, content=body).status_code == 400


def test_an_event_is_small(client: TestClient) -> None:
    answer = client.post(JOIN, json={"data": ["a" * 70_000]})
    assert (answer.status_code, answer.json()) == (413, {"message": "at most 64 kB are taken"})


@pytest.mark.parametrize("fields", [{}, None, 7, "id ref"])
def test_an_event_that_names_no_image_is_answered_in_words(client: TestClient, fields: object) -> None:
    for number in (0, 1, 2, 5):
        told = answer_event(client, {"fn_index": number, "data": [None, 24], "event_data": fields})
        assert told["success"] is True
        assert "a query is &#x27;member:&lt;id&gt;&#x27;" in json.dumps(told["output"])
    told = answer_event(client, {"fn_index": 6, "data": [], "event_data": fields})
    assert "The photo could not be sent." in json.dumps(told["output"])


@pytest.mark.parametrize("data", [[], [None], [None, "many"], [None, None]])
def test_an_unforeseen_failure_shows_nothing_of_the_inside(
    client: TestClient, capsys: pytest.CaptureFixture[str], data: list[object]
) -> None:
    told = answer_event(client, {"fn_index": 4, "data": data})
    assert (told["success"], told["output"]) == (False, {"error": None})
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/query", JOIN])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://attacker.example"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Origin": "null"},
    ],
)
def test_other_sites_may_not_send(client: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = client.post(path, content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["message"]) == (403, "only this page itself may send to this server")


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://127.0.0.1:7860"}])
def test_the_page_itself_may_send(client: TestClient, gallery: Gallery, headers: dict[str, str]) -> None:
    data = (gallery.sources[1].root / "red/0.jpg").read_bytes()
    assert client.post("/query", content=data, headers=headers).status_code == 200


def test_more_uploads_than_are_held_are_sent_away_while_thumbnails_still_come(
    client: TestClient, gallery: Gallery, ids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    hold = SearchService.hold_upload

    def hold_later(service: SearchService, data: bytes, *, name: str) -> Query:
        go_on.wait(timeout=60)
        return hold(service, data, name=name)

    monkeypatch.setattr(SearchService, "hold_upload", hold_later)
    data = (gallery.sources[1].root / "red/0.jpg").read_bytes()
    with ThreadPoolExecutor(UPLOADS_HELD + 1) as pool:
        uploads = [pool.submit(client.post, "/query", content=data) for _ in range(UPLOADS_HELD + 1)]
        refused = next(as_completed(uploads)).result()
        thumbnail = client.get(f"/thumb/{ids['red/0.jpg']}")
        go_on.set()
        answers = sorted(upload.result().status_code for upload in uploads)
    assert (refused.status_code, thumbnail.status_code) == (503, 200)
    assert refused.json() == {"message": "The server is busy with other photos; try again in a moment."}
    assert answers == [200] * UPLOADS_HELD + [503]
    assert client.post("/query", content=data).status_code == 200
