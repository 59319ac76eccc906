from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from retrieval_app.api.security.cross_site import comes_from_another_site

HOSTILE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of this host, where anybody may listen
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:7861"},
    {"Referer": "http://evil.example/page?http://127.0.0.1:7860/"},
    {"Referer": "http://127.0.0.1:78601/"},
    {"Referer": "about:blank"},
    {"Origin": "http://evil.example", "Referer": "http://127.0.0.1:7860/"},
]
OWN: list[dict[str, str]] = [
    {},
    {"User-Agent": "curl/8.5.0"},
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "http://127.0.0.1:7860"},
    {"Referer": "http://127.0.0.1:7860/?view=labels"},
]
PATHS = (
    "/v1/gallery",
    "/v1/images/1/thumbnail",
    "/v1/labels/file",
    "/v1/health",
    "/v1/openapi.json",
    "/v1/nothing",
)


@pytest.mark.parametrize("headers", HOSTILE, ids=str)
def test_another_site_can_neither_read_from_the_api_nor_write(client: TestClient, headers: dict[str, str]) -> None:
    for path in PATHS:
        response = client.get(path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_site"), path
    response = client.post("/v1/labels/undo", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_site")
    assert client.request("HEAD", "/v1/gallery", headers=headers).status_code == 403


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_page_and_programs_read_and_write(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/v1/gallery", headers=headers).status_code == 200
    assert client.get("/v1/labels/file", headers=headers).status_code == 200
    assert client.post("/v1/labels/undo", headers=headers).status_code == 200


def test_a_link_on_another_site_opens_the_page(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Referer": "https://mail.example/"}
    assert client.get("/?view=map", headers=headers).status_code == 200


def test_names_are_compared_in_one_case() -> None:
    assert not comes_from_another_site(Headers({"host": "Photos.Example", "origin": "https://photos.EXAMPLE"}))
