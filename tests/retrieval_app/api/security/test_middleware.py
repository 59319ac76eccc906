from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from retrieval_app.api.security.access import Access
from retrieval_app.serving.serving_config import ServingConfig
from tests.retrieval_app.api.conftest import TOKEN, serve


@pytest.fixture(scope="module")
def guarded(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access(token=TOKEN, loopback=False)) as client:
        yield client


def test_whatever_the_page_does_not_need_is_not_there(client: TestClient) -> None:
    for path in (
        *("/gradio_api/file=/etc/passwd", "/config", "/login", "/docs/../v1", "/openapi.json"),
        *("/assets/../../secret", "/page/..%2f..%2fsecret", "/v10/gallery"),
    ):
        response = client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found"), path


def test_every_answer_carries_the_security_headers_and_an_id(client: TestClient) -> None:
    for path in ("/v1/health", "/v1/nothing", "/nothing", "/v1/images/1/thumbnail"):
        response = client.get(path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors" in response.headers["content-security-policy"]
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert len(response.headers["x-request-id"]) == 16
        assert "access-control-allow-origin" not in response.headers


def test_a_request_id_of_the_client_is_taken_if_it_is_harmless(client: TestClient) -> None:
    assert client.get("/v1/health", headers={"X-Request-Id": "trace-7"}).headers["x-request-id"] == "trace-7"
    assert client.get("/v1/health", headers={"X-Request-Id": "<b>"}).headers["x-request-id"] != "<b>"
    answer = client.get("/v1/images/99999", headers={"X-Request-Id": "trace-8"}).json()
    assert answer["request_id"] == "trace-8"


def test_a_head_is_bounded_also_where_it_comes_at_once(client: TestClient) -> None:
    assert client.get("/v1/health", headers={"X-Long": "x" * 60_000}).status_code == 200
    for query, header in (("", "x" * 66_000), ("x" * 40_000, "x" * 26_000)):
        response = client.get(f"/v1/health?x={query}", headers={"X-Long": header})
        assert (response.status_code, response.json()["error"]["code"]) == (431, "head_too_large")


def test_a_body_without_its_length_is_refused(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"{}"

    assert client.post("/v1/search", content=chunks()).status_code == 411


def test_json_and_images_have_each_their_limit(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    too_much = b" " * (ServingConfig().max_json_bytes + 1)
    assert client.post("/v1/search", content=too_much, headers=headers).status_code == 413
    assert client.post("/v1/embed", content=too_much).status_code == 422  # no image, but not too large for one
    assert client.post("/v1/embed", headers={"Content-Length": str(10**11)}).status_code == 413


def test_forms_of_anything_but_an_image_are_refused(client: TestClient) -> None:
    fields = {f"field{number}": "x" for number in range(10_000)}
    assert client.post("/v1/search", data=fields).status_code == 415
    assert client.post("/v1/labels/decisions", files={"file": b"x"}).status_code == 415
    for path, kind in (("/v1/search", "text/plain"), ("/v1/embed", "multipart/mixed; boundary=b")):
        assert client.post(path, content=b"{}", headers={"Content-Type": kind}).status_code == 415


def test_other_methods_are_refused_with_those_there_are(client: TestClient) -> None:
    for method, path, allowed in (
        ("PUT", "/v1/images/1", "DELETE, GET"),
        ("TRACE", "/v1/search", "POST"),
        ("OPTIONS", "/v1/gallery", "GET"),
        ("HEAD", "/v1/gallery", "GET"),
    ):
        response = client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


def test_nothing_under_the_api_falls_through_to_the_page(client: TestClient) -> None:
    for path in ("/v1", "/v1/", "/v1/nothing", "/v1/images/", "/v1/images/1/nothing", "/v1//gallery"):
        for method in ("GET", "POST", "DELETE"):
            response = client.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/search"):
        pass


def test_a_client_that_leaves_is_not_answered(client: TestClient) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/photos",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"3")],
        "client": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    anyio.run(client.app, scope, receive, send)
    assert sent == []


def test_bodies_share_a_limit(served: Path) -> None:
    config = ServingConfig(threads=1, bytes_arriving=1000)
    with serve(served, access=Access(), config=config) as client:
        response = client.post("/v1/embed", content=b"x" * 1001)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
        assert response.headers["retry-after"] == "1"
        assert client.post("/v1/embed", content=b"x" * 999).status_code == 422


def test_without_the_token_only_health_is_told(guarded: TestClient) -> None:
    assert guarded.get("/v1/health").status_code == 200
    assert guarded.get("/v1/ready").status_code == 200
    for path in ("/v1/gallery", "/v1/openapi.json", "/", "/page/core/dom.js", "/v1/nothing"):
        response = guarded.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_token_opens_the_api(guarded: TestClient) -> None:
    assert guarded.get("/v1/gallery", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    for wrong in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer é", "bearer", ""):
        headers = {b"Authorization": wrong.encode()}
        assert guarded.get("/v1/gallery", headers=headers).status_code == 401


FRIEND = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def open_to_all(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access(loopback=False)) as client:
        yield client


def test_decisions_need_this_machine_or_a_token(client: TestClient, open_to_all: TestClient, served: Path) -> None:
    def read_rights(client: TestClient) -> list[bool]:
        permissions = client.get("/v1/gallery", headers=FRIEND).json()["permissions"]
        return [permissions[right] for right in ("review", "write")]

    assert read_rights(client) == [True, False]
    assert read_rights(open_to_all) == [False, False]  # a token that nobody asks for opens nothing
    with serve(served, access=Access(loopback=False, token=TOKEN, writable=True)) as friend:
        assert read_rights(friend) == [True, True]
    with serve(served, access=Access(token=TOKEN)) as friend:
        assert read_rights(friend) == [True, False]
        through_a_proxy = {**FRIEND, "X-Forwarded-For": "203.0.113.9"}
        assert friend.post("/v1/labels/undo", headers=through_a_proxy).status_code == 200


def test_behind_a_proxy_on_this_machine_nobody_is_of_this_machine(client: TestClient) -> None:
    for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host", "CF-Connecting-IP"):
        for headers in ({name: "127.0.0.1"}, {name: ""}):
            assert client.get("/v1/gallery", headers=headers).json()["permissions"]["review"] is False
            for path in ("/v1/labels/undo", "/v1/duplicates/undo"):
                refused = client.post(path, json={}, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
