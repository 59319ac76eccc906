"""Images of the gallery and their files, also of those on a network."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from index.gallery.gallery import Gallery
from index.network.web_store import VARIABLE
from index.writing.build import build_gallery
from retrieval_app.api import image_routes
from retrieval_app.api.security.access import Access
from retrieval_app.review.places import read_valid_metadata
from tests.conftest import draw_folder
from tests.remote_servers import OWNER, Fault, serve_files
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.conftest import VANISHED

HUGE = 2**53


def test_images_come_page_by_page_in_the_order_of_their_ids(client: TestClient) -> None:
    seen, after, total = list[int](), -1, 0
    while True:
        page = client.get("/v1/images", params={"after": after, "limit": 7}).json()
        seen += [image["id"] for image in page["images"]]
        total = page["total"]
        if page["next_after"] is None:
            break
        after = page["next_after"]
    assert seen == sorted(set(seen))
    assert len(seen) == total == 19


def test_only_what_is_asked_for_is_told_and_conditions_narrow_it(client: TestClient) -> None:
    image = client.get("/v1/images", params={"limit": 1}).json()["images"][0]
    assert image.keys() == {"id"}
    image = client.get("/v1/images", params={"limit": 1, "include": "metadata,label"}).json()["images"][0]
    assert image.keys() == {"id", "label", "metadata"}
    blue = client.get("/v1/images", params={"where": "label = 'blue'", "include": "label"}).json()
    assert (blue["total"], {image["label"] for image in blue["images"]}) == (5, {"blue"})
    both = client.get("/v1/images", params={"where": "label = 'blue'", "text": "png"}).json()
    assert both["total"] == 2


def test_what_cannot_be_asked_is_refused(client: TestClient) -> None:
    asked: list[dict[str, str | int]] = [
        {"where": "label ="},
        {"where": "1; DROP TABLE images"},
        {"where": "nothing = 1"},
        {"where": "\0"},
        {"text": "\0"},
        {"text": " ".join(f"w{number}" for number in range(30))},
        {"limit": 0},
        {"limit": 10**9},
        {"after": HUGE},
        {"include": "secret"},
        {"include": "precision_at_score"},
        {"unknown": 1},
    ]
    for parameters in asked:
        assert client.get("/v1/images", params=parameters).status_code == 422, parameters
    misspelt = client.get("/v1/images", params={"include": "label,paht"}).json()["error"]
    assert misspelt["field"] == "include"
    assert "label|tags|path" in misspelt["message"]
    for path in ("/v1/images", "/v1/facets"):
        answer = client.get(path, params={"where": "label IN ('green', 'bleu')"})
        assert answer.status_code == 422
        assert answer.json()["error"]["message"].startswith("no item of the gallery has the label bleu; there are ")


def test_a_picture_that_the_browser_has_is_not_sent_again(client: TestClient, image_ids: dict[str, int]) -> None:
    url = f"/v1/images/{image_ids['red/1.png']}/thumbnail"
    first = client.get(url).headers
    tag = first["etag"]
    assert first["cache-control"] == "private, no-cache"  # no proxy keeps it
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        response = client.get(url, headers={"If-None-Match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
        assert "x-content-type-options" in response.headers
    assert client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_vanished_file_has_no_picture_but_a_description(client: TestClient, image_ids: dict[str, int]) -> None:
    for what, status in (("/thumbnail", 404), ("/preview", 404), ("", 200)):
        assert client.get(f"/v1/images/{image_ids[VANISHED]}{what}").status_code == status


def test_a_replaced_file_is_never_served(client: TestClient, image_ids: dict[str, int], served: Path) -> None:
    path = served.parent / "images" / "green" / "3.png"
    before = path.read_bytes()
    try:
        for content in (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", b"<script>alert(1)</script>"):
            path.write_bytes(content)
            response = client.get(f"/v1/images/{image_ids['green/3.png']}/preview")
            assert (response.status_code, response.json()["error"]["code"]) == (404, "bad_image")
            assert b"alert" not in response.content
    finally:
        path.write_bytes(before)


def test_what_the_description_does_not_tell_is_not_sent(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_routes, "describe_row", lambda *_, **__: {"label": "red"})
    assert client.get("/v1/images").status_code == 200
    monkeypatch.setattr(image_routes, "describe_row", lambda *_, **__: {"secret": "/home"})
    assert client.get("/v1/images").status_code == 500


def test_metadata_is_told_without_halves_of_surrogate_pairs(gallery: Gallery) -> None:
    [row] = gallery.rows(gallery.ids[:1].tolist())
    odd = replace(row, metadata_json=r'{"\ud800": ["caf\u00e9", "\udcff", "\ud83d\ude00", 1e999]}')
    assert read_valid_metadata(odd) == {"?": ["café", "?", "😀", float("inf")]}
    assert read_valid_metadata(row) == row.metadata


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
