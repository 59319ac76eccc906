"""A gallery of a bucket and of a list of addresses, served: its pictures are fetched when somebody looks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from index.network.web_store import VARIABLE
from index.writing.build import build_gallery
from retrieval_app.api.security.access import Access
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
        for name, value in {"AWS_ENDPOINT_URL": buckets.address, "AWS_ACCESS_KEY_ID": OWNER, VARIABLE: "127.0.0.1",
                            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}.items():  # fmt: skip
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
            gone = client.get(f"/v1/images/{first}/picture")
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "bad_image")
            assert ("secret-bucket" in gone.text) is access.loopback
            assert buckets.address not in gone.text
            changed = client.get(f"/v1/images/{last}/picture")
            assert (changed.status_code, changed.json()["error"]["code"]) == (409, "changed")
            monkeypatch.delenv(VARIABLE)
            refused = client.get(f"/v1/images/{last}/thumbnail?side=512")
            assert refused.status_code == 404
            assert "public addresses only" in refused.text
