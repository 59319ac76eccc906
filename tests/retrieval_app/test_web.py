from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from index.gallery import Gallery
from retrieval_app.service import MAX_UPLOAD_BYTES, SearchService
from tests.retrieval_app.conftest import VANISHED

pytest.importorskip("gradio", reason="needs the extra `ui`")
from fastapi import FastAPI
from starlette.testclient import TestClient

from retrieval_app.web import create_app

REFUSED = "this page does not serve that address"


@pytest.fixture(scope="module")
def client(gallery: Gallery) -> Iterator[TestClient]:
    async def build() -> FastAPI:  # Gradio leaves an event loop open where none is running
        return create_app(SearchService(gallery))

    with TestClient(asyncio.run(build()), base_url="http://127.0.0.1:7860") as client:
        yield client


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
    data = (gallery.folder / "red/0.jpg").read_bytes()
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
