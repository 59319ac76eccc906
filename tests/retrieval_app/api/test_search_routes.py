"""Searches by semantic similarity and for copies: by member, by kept or sent photo; forms with a photo."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.api.errors import ApiError
from retrieval_app.api.form_files import read_form_file
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
    view = two.view(by)
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


KIND = 'multipart/form-data; boundary="b"'


def _form(content: bytes, *, head: bytes = b'name="file"; filename="q.jpg"', end: bytes = b"--\r\n") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n--b" + end


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n", b"--b", b"\r\n--a\r\n\r\n", bytes(range(256)) * 1000])
def test_the_file_is_found_to_the_byte(content: bytes) -> None:
    assert read_form_file(_form(content), KIND) == content
    assert read_form_file(_form(content, end=b"--"), "Multipart/Form-Data; charset=utf-8; boundary=b") == content


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (_form(b"x"), "multipart/form-data", "has no boundary"),
        (_form(b"x"), "multipart/form-data; boundary=c", "does not begin"),
        (b"", KIND, "does not begin"),
        (b"--b\r\nContent-Disposition: form-data; " + b"a" * 5000 + b"\r\n\r\nx\r\n--b--", KIND, "does not begin"),
        (_form(b"x")[:-6], KIND, "has no end"),
        (_form(b"x", end=b"\r\n") + _form(b"y")[5:], KIND, "more fields"),
        (_form(b"x", end=b"--and more"), KIND, "more fields"),
        (_form(b"x", head=b'name="photo"; filename="q.jpg"'), KIND, "field is 'photo'"),
        (_form(b"x", head=b'name="file"'), KIND, "a text and no file"),
        (b"--b\r\nContent-Type: image/jpeg\r\n\r\nx\r\n--b--", KIND, "has no name"),
    ],
)
def test_another_form_is_refused_in_words(body: bytes, kind: str, problem: str) -> None:
    with pytest.raises(ApiError, match=problem) as raised:
        read_form_file(body, kind)
    assert "-F file=@query.jpg" in str(raised.value)


@pytest.mark.parametrize("fill", [b"\r\n--", b"-", b"\r\n--b\r\n"])
def test_no_form_takes_long_to_be_read(fill: bytes) -> None:
    started = time.thread_time()
    body = fill * (20 * 1024 * 1024 // len(fill))
    for form in (body, _form(body), _form(body)[:-8]):
        with suppress(ApiError):
            read_form_file(form, KIND)
    assert time.thread_time() - started < 2


def test_a_form_finds_what_the_bytes_find(client: TestClient, image_ids: dict[str, int]) -> None:
    data = client.get(f"/v1/images/{image_ids['blue/0.jpg']}/thumbnail").content
    for path, same in (("/v1/search/image?k=3", "hits"), ("/v1/embed", "vector")):
        bare = client.post(path, content=data).json()[same]
        assert client.post(path, files={"file": ("query.png", data)}).json()[same] == bare
    assert client.post("/v1/photos", files={"file": ("query.png", data)}).status_code == 201


def test_words_ask_alone_and_beside_images(client: TestClient, gallery: Gallery, image_ids: dict[str, int]) -> None:
    def ask(*queries: dict[str, object], **others: object) -> dict:
        return client.post("/v1/search", json={"queries": queries, "include": ["label", "path"], **others}).json()

    found = ask({"text": "rde -green"}, k=5)
    words = {"understood": {"rde": ["red"], "-green": ["green"]}, "images": 9, "looks": "taught"}
    assert found["words"] == words | {"explanation": gallery.ask_words("rde -green").explain()}
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in gallery.search("rde -green", k=5)]
    assert next(hit["words"] for hit in found["hits"] if hit["label"] == "red") == ["red"]
    for offset in (0, 2):
        page = ask({"text": "red"}, k=2, offset=offset, where="label = 'red'")
        expected = gallery.search("red", k=4, where="label = 'red'")[offset : offset + 2]
        assert [(hit["id"], hit["found_by"]) for hit in page["hits"]] == [(hit.id, hit.found_by) for hit in expected]
    blue = image_ids["blue/0.jpg"]
    both = ask({"image_id": blue}, {"text": "red", "weight": 3}, k=3)
    assert both["words"] is None
    assert {hit["label"] for hit in both["hits"]} == {"red"}
    assert {hit["label"] for hit in ask({"image_id": blue}, {"text": "red", "weight": -3}, k=3)["hits"]} != {"red"}
    for text, problem in (("xyzzy", "written or taught about 'xyzzy'"), ("?!", "letters or digits"), ("", "text")):
        refused = client.post("/v1/search", json={"queries": [{"text": text}]})
        assert refused.status_code == 422
        assert problem in refused.text
    assert client.post("/v1/search", json={"queries": [{"text": "red"}], "by": "copy"}).status_code == 422
    while (known := client.get("/v1/words").json())["state"] == "computing":
        time.sleep(0.05)
    assert {"red", "green", "blue"} <= {one["word"] for one in known["words"]}
