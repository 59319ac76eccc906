"""The application of a server with one gallery: page and API, what goes out compressed, and what is logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
from retrieval_app.server.log_config import LogConfig
from retrieval_app.server.options import ServeOptions
from tests.serving_app import App, open_app


@pytest.fixture(scope="module")
def app(small_gallery: Path) -> Iterator[App]:
    """For this machine alone."""
    with open_app(ServeOptions.of(small_gallery)) as app:
        yield app


@pytest.mark.parametrize("path", ["/page/nav.js", "/v1/openapi.json"])
def test_text_goes_out_compressed_to_who_takes_it(app: App, path: str) -> None:
    plain = app.get(path, **{"Accept-Encoding": "identity"})
    sent = app.client.get(f"http://127.0.0.1:7860{path}", headers={"Accept-Encoding": "gzip"})
    assert sent.content == plain.body
    assert int(sent.headers["content-length"]) < 0.6 * len(plain.body)
    assert sent.headers["content-encoding"] == "gzip"
    assert sent.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_file_that_a_browser_has_is_not_sent_again(app: App, encoding: str) -> None:
    tag = app.get("/page/nav.js", **{"Accept-Encoding": encoding}).headers["etag"]
    assert tag.startswith("W/") == (encoding == "gzip")
    again = app.get("/page/nav.js", **{"Accept-Encoding": encoding, "If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


def test_pictures_go_out_as_they_are(app: App) -> None:
    image = app.get("/v1/images/random?count=1").json()["images"][0]["id"]
    picture = app.get(f"/v1/images/{image}/picture", **{"Accept-Encoding": "gzip"})
    assert picture.headers["content-type"].startswith("image/")
    assert "content-encoding" not in picture.headers


def test_the_page_and_the_documentation_have_one_policy_and_nothing_of_scripts_in_them(app: App) -> None:
    page, docs = app.get("/"), app.get("/docs/")
    assert (page.status, docs.status) == (200, 200)
    assert page.headers["content-security-policy"] == docs.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert b"app-frame" in page.body
    assert app.get("/docs").status == 307
    assert app.get("/docs/swagger-ui-bundle.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/docs/nothing.js", "/page/../shell.py", "/page/%2e%2e/shell.py", "/page/none.js", "/nowhere"):
        assert app.get(path).status == 404, path
    assert app.ask("POST", "/docs/").status == 405


def test_requests_and_slow_searches_are_logged_without_what_was_asked(small_gallery: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_app(ServeOptions.of(small_gallery, logs=LogConfig(access_log=log, slow_query_ms=0))) as app:
        query = {"queries": [{"image_id": 1}], "k": 2, "where": "label = 'private'"}
        assert app.ask("POST", "/v1/search?by=secret", json=query).status in (200, 422)
        assert app.ask("POST", "/v1/search", json={**query, "where": "label = 'red'"}).status == 200
        assert app.get("/v1/images?text=private&limit=2").status == 200
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(one["method"], one["route"], one["status"]) for one in requests][1:] == [
        ("POST", "/v1/search", 200), ("GET", "/v1/images", 200),
    ]  # fmt: skip
    assert requests[-1]["query"] == "text=…&limit=2"
    [slow] = [line for line in lines if line["event"] == "slow_search"]
    assert slow["request_id"] == requests[1]["request_id"]
    assert (slow["searches"][0]["filter"], slow["searches"][0]["k"]) == ("label = ?", 2)
    assert "private" not in log.read_text()
    assert "'red'" not in log.read_text()
