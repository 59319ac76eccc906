"""The application of a server with one gallery: page and API, what goes out compressed, and what is logged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_a_file_that_a_browser_has_is_not_sent_again_and_pictures_go_out_as_they_are(app: App) -> None:
    for encoding in ("gzip", "identity"):
        tag = app.get("/page/nav.js", **{"Accept-Encoding": encoding}).headers["etag"]
        assert tag.startswith("W/") == (encoding == "gzip")
        again = app.get("/page/nav.js", **{"Accept-Encoding": encoding, "If-None-Match": tag})
        assert (again.status, again.body) == (304, b"")
    image = app.get("/v1/images?limit=1").json()["images"][0]["id"]
    picture = app.get(f"/v1/images/{image}/preview", **{"Accept-Encoding": "gzip"})
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
