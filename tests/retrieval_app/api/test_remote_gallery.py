"""Images that lie on a network: those of a gallery, fetched when somebody looks, and photos by their address."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from index.network.web_store import VARIABLE
from index.writing.build import build_gallery
from retrieval_app.api.security.access import Access
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.serving_config import ServingConfig
from tests.answering_server import answer_paths
from tests.conftest import draw_folder
from tests.remote_servers import OWNER, Fault, serve_files
from tests.retrieval_app.api.conftest import serve


@pytest.mark.parametrize("access", [Access(), Access(loopback=False)], ids=["owner", "stranger"])
def test_pictures_of_what_lies_on_a_network_are_fetched_and_failures_told(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, access: Access
) -> None:
    images = draw_folder(tmp_path / "images")
    with serve_files(as_buckets=True) as buckets, serve_files() as web:
        for file in images.rglob("*.*"):
            buckets.files[f"/secret-bucket/photos/{file.relative_to(images)}"] = file.read_bytes()
        web.files["/1.jpg"] = (images / "red/0.jpg").read_bytes()
        (tmp_path / "urls.txt").write_text(f"{web.address}/1.jpg")
        for name, value in {
            "AWS_ENDPOINT_URL": buckets.address,
            "AWS_ACCESS_KEY_ID": OWNER,
            VARIABLE: "127.0.0.1",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        sources = ["s3://secret-bucket/photos", tmp_path / "urls.txt"]
        build_gallery(model_path=tiny_model, sources=sources, out=tmp_path / "g")
        monkeypatch.setenv(VARIABLE, "127.0.0.1/32")
        with serve(tmp_path / "g", access=access) as client:
            listed = client.get("/v1/images", params={"include": "path,source"}).json()["images"]
            assert len(listed) == 16
            assert ("secret-bucket" in str(listed)) is access.loopback
            buckets.asked.clear()
            first, last = listed[0]["id"], listed[-1]["id"]
            for number in (first, last):
                answer = client.get(f"/v1/images/{number}/thumbnail")
                assert Image.open(io.BytesIO(answer.content)).size == (64, 48)
            assert buckets.count("GET") == 1
            described = client.get(f"/v1/images/{last}").json()
            assert described["path"] == f"{web.address}/1.jpg"
            assert described["source"].endswith("urls.txt")
            # Not kept in memory by this size.
            buckets.faults[f"/secret-bucket/photos/{listed[0]['path']}"] = [Fault(403)]
            web.files["/1.jpg"] = (images / "red/2.jpg").read_bytes()
            gone = client.get(f"/v1/images/{first}/preview")
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "bad_image")
            assert ("secret-bucket" in gone.text) is access.loopback
            assert buckets.address not in gone.text
            changed = client.get(f"/v1/images/{last}/preview")
            assert (changed.status_code, changed.json()["error"]["code"]) == (409, "changed")
            monkeypatch.delenv(VARIABLE)
            refused = client.get(f"/v1/images/{last}/thumbnail?side=512")
            assert refused.status_code == 404
            assert "public addresses only" in refused.text


@pytest.fixture(scope="module")
def fetching(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access(fetches=True)) as client:
        assert isinstance(client.app, FastAPI)
        client.app.state.fetcher = PhotoFetcher(ServingConfig(), may_connect=lambda *_: True)
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


def test_a_server_fetches_only_where_it_was_told_to(client: TestClient, fetching: TestClient) -> None:
    answer = client.post("/v1/photos/address", json={"address": "http://127.0.0.1:1/"})
    assert answer.status_code == 403
    assert "--fetch-addresses" in answer.json()["error"]["message"]
    told = [asked.get("/v1/gallery").json()["permissions"]["fetch"] for asked in (client, fetching)]
    assert told == [False, True]
