"""Searching with a photo by its address: where the server may, and as if the photo had been sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from retrieval_app.api.security.access import Access
from retrieval_app.serving.photo_fetching import PhotoFetcher
from tests.answering_server import answer_paths
from tests.retrieval_app.api.conftest import serve


@pytest.fixture(scope="module")
def fetching(served: Path) -> Iterator[TestClient]:
    """Asks a server that fetches photos, from this machine too."""
    with serve(served, access=Access(fetches=True)) as client:
        assert isinstance(client.app, FastAPI)
        client.app.state.fetcher = PhotoFetcher(max_bytes=1 << 20, may_connect=lambda *_: True)
        yield client


def test_a_photo_of_an_address_finds_what_the_photo_finds(fetching: TestClient, served: Path) -> None:
    photo = next((served.parent / "images" / "red").iterdir())
    with answer_paths(lambda _: (200, {"Content-Type": "image/png"}, photo.read_bytes())) as port:
        kept = fetching.post("/v1/photos/address", json={"address": f"http://127.0.0.1:{port}/{photo.name}"})
    assert kept.status_code == 201
    assert kept.json()["name"] == photo.name
    queries = [{"photo": kept.json()["photo"]}]
    found = fetching.post("/v1/search", json={"queries": queries, "k": 1, "include": ["path"]}).json()["hits"]
    assert found[0]["path"] == f"red/{photo.name}"
    assert found[0]["score"] == pytest.approx(1, abs=1e-4)


def test_what_is_at_the_address_must_be_a_picture(fetching: TestClient) -> None:
    with answer_paths(lambda _: (200, {}, b"%PDF-1.7")) as port:
        answer = fetching.post("/v1/photos/address", json={"address": f"http://127.0.0.1:{port}/a.pdf"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_image")
    assert "a.pdf: the content is none of JPEG" in answer.json()["error"]["message"]


def test_a_server_fetches_only_where_it_was_told_to(client: TestClient, fetching: TestClient) -> None:
    answer = client.post("/v1/photos/address", json={"address": "http://127.0.0.1:1/"})
    assert answer.status_code == 403
    assert "--fetch-addresses" in answer.json()["error"]["message"]
    told = [asked.get("/v1/gallery").json()["can"]["fetch"] for asked in (client, fetching)]
    assert told == [False, True]
