"""Searches by semantic similarity and for copies over HTTP: by member, by kept or sent photo, alone and in a batch."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.api.security.access import Access
from tests.conftest import draw_folder
from tests.models import write_two_output_model
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.conftest import build_small_gallery

OUTPUTS = ("semantic", "copy")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("two")
    return Gallery.open(build_small_gallery(folder, model=write_two_output_model(folder / "two.onnx", threshold=0.97)))


@pytest.fixture(scope="module")
def asked(two: Gallery) -> Iterator[TestClient]:
    with serve(two.path, access=Access()) as client:
        yield client


@pytest.mark.parametrize("by", OUTPUTS)
def test_a_photo_asks_by_either_sent_or_kept_whole_or_cut(two: Gallery, asked: TestClient, by: str) -> None:
    view = two.by(by)
    data = view.place(int(two.ids[7])).file.read_bytes()
    embedded = asked.post("/v1/embed", params={"by": by}, content=data).json()
    assert embedded["embedding_dim"] == view.width
    assert np.allclose(embedded["vector"], view.vector(int(two.ids[7])), atol=1e-5)
    sent = asked.post("/v1/search/image", params={"k": 5, "by": by}, content=data)
    assert [hit["id"] for hit in sent.json()["hits"]] == [hit.id for hit in view.search(data, k=5)]
    kept = asked.post("/v1/photos", content=data).json()["photo"]
    whole = asked.post("/v1/search", json={"queries": [{"photo": kept}], "k": 5, "by": by}).json()
    assert whole["hits"][0]["id"] == sent.json()["hits"][0]["id"]
    crop = {"x": 0, "y": 0, "width": 0.5, "height": 0.5}
    part = asked.post("/v1/search", json={"queries": [{"photo": kept, "crop": crop}], "k": 5, "by": by})
    assert part.status_code == 200
    assert part.json()["hits"][0]["score"] != whole["hits"][0]["score"]


def test_by_copy_a_result_says_whether_it_is_a_copy_and_has_no_precision(two: Gallery, asked: TestClient) -> None:
    query = {"queries": [{"image_id": int(two.ids[0])}], "k": 9, "include": ["precision_at_score"]}
    by_copy = asked.post("/v1/search", json={**query, "by": "copy"}).json()["hits"]
    assert [hit["is_copy"] for hit in by_copy] == [hit["score"] >= 0.97 for hit in by_copy]
    assert {hit["is_copy"] for hit in by_copy} == {True, False}
    assert all(hit["precision_at_score"] is None for hit in by_copy)
    assert "is_copy" not in asked.post("/v1/search", json=query).json()["hits"][0]


def test_a_photo_that_is_sent_gets_the_precision_of_one_that_is_kept(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=12)
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "gallery")
    data = min(images.glob("red/*")).read_bytes()
    with serve(tmp_path / "gallery") as client:
        client.app.state.engine.snapshot().insights.wait("calibration")
        sent = client.post("/v1/search/image", params={"k": 9, "include": "precision_at_score"}, content=data).json()[
            "hits"
        ]
        query = {"queries": [{"photo": client.post("/v1/photos", content=data).json()["photo"]}], "k": 9}
        kept = client.post("/v1/search", json={**query, "include": ["precision_at_score"]}).json()["hits"]
    assert sent[0]["precision_at_score"] is not None
    assert [hit["precision_at_score"] for hit in sent] == [hit["precision_at_score"] for hit in kept]
