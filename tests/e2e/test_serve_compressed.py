"""A running server sends text compressed to whoever takes it so."""

from __future__ import annotations

import gzip
import os

import pytest

if "CI" not in os.environ:
    pytest.importorskip("gradio", reason="needs the extra `ui`")

from tests.serving_server import Server


@pytest.mark.parametrize("path", ["/page/nav.js", "/v1/openapi.json"])
def test_text_goes_out_compressed_to_who_takes_it(server: Server, path: str) -> None:
    plain = server.get(path, **{"Accept-Encoding": "identity"})
    sent = server.get(path, **{"Accept-Encoding": "br, gzip"})
    assert gzip.decompress(sent.body) == plain.body
    assert len(sent.body) < 0.6 * len(plain.body)
    assert sent.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_file_that_a_browser_has_is_not_sent_again(server: Server, encoding: str) -> None:
    tag = server.get("/page/nav.js", **{"Accept-Encoding": encoding}).headers["etag"]
    assert tag.startswith("W/") == (encoding == "gzip")
    again = server.get("/page/nav.js", **{"Accept-Encoding": encoding, "If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


def test_pictures_go_out_as_they_are(server: Server) -> None:
    image = server.get("/v1/images/random?count=1").json()["images"][0]["id"]
    picture = server.get(f"/v1/images/{image}/picture", **{"Accept-Encoding": "gzip"})
    assert picture.headers["content-type"].startswith("image/")
    assert "content-encoding" not in picture.headers
