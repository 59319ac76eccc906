from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from index.gallery.gallery import Gallery
from retrieval_app.api import image_routes
from retrieval_app.review.places import read_sound_metadata
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


def test_labels_of_neighbours_and_vectors_are_given(client: TestClient, image_ids: dict[str, int]) -> None:
    answer = client.get(f"/v1/images/{image_ids['blue/0.jpg']}/labels", params={"k": 5}).json()
    assert answer["label"] == "blue"
    assert sum(share["count"] for share in answer["shares"]) == 5
    assert client.get(f"/v1/images/{image_ids['blue/0.jpg']}/labels", params={"k": 10**9}).status_code == 422
    answer = client.get(f"/v1/images/{image_ids['blue/0.jpg']}/vector").json()
    assert sum(value * value for value in answer["vector"]) == pytest.approx(1, abs=1e-4)


def test_what_the_description_does_not_tell_is_not_sent(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_routes, "describe_row", lambda *_, **__: {"label": "red"})
    assert client.get("/v1/images/random").status_code == 200
    monkeypatch.setattr(image_routes, "describe_row", lambda *_, **__: {"secret": "/home"})
    assert client.get("/v1/images/random").status_code == 500


def test_metadata_is_told_without_halves_of_surrogate_pairs(gallery: Gallery) -> None:
    [row] = gallery.rows(gallery.ids[:1].tolist())
    odd = replace(row, metadata_json=r'{"\ud800": ["caf\u00e9", "\udcff", "\ud83d\ude00", 1e999]}')
    assert read_sound_metadata(odd) == {"?": ["café", "?", "😀", float("inf")]}
    assert read_sound_metadata(row) == row.metadata
