"""Images are filtered, counted and sorted by when they were taken; where they were is not told unasked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.writing.build import build_gallery
from retrieval_app.serving.serving_config import ServingConfig
from tests.described_photos import save_photo
from tests.retrieval_app.api.conftest import serve

TIMES = ("2021:03:01", "2023:12:24", "2021:03:09", "2019:07:31", None)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("described")
    for number, day in enumerate(TIMES):
        save_photo(folder / "photos" / f"{number}.jpg", day and f"{day} 12:00:00", seed=number, place=(48, 2.5))
    build_gallery(model_path=tiny_model, sources=[folder / "photos"], out=folder / "gallery", gps=True)
    return folder / "gallery"


@pytest.fixture(scope="module")
def client(described: Path) -> Iterator[TestClient]:
    with serve(described) as client:
        yield client


def _list(client: TestClient, **asked: Any) -> tuple[list[str], int | None]:
    answer = client.get("/v1/images", params={"include": "path", **asked}).json()
    return [image["path"] for image in answer["images"]], answer["next_after"]


def _count(client: TestClient, **asked: str) -> dict[str, int]:
    [facet] = client.get("/v1/facets", params={"facet": "taken", **asked}).json()["facets"]
    for value in facet["values"]:
        assert client.get("/v1/images", params={"where": value["where"]}).json()["total"] == value["count"]
    return {value["value"]: value["count"] for value in facet["values"]}


def test_images_are_sorted_filtered_and_counted_by_time(client: TestClient) -> None:
    first, after = _list(client, sort="-taken", limit=2)
    assert first == ["1.jpg", "2.jpg"]
    assert _list(client, sort="-taken", after=after) == (["0.jpg", "3.jpg", "4.jpg"], None)
    # Photo 1 follows photo 2 by its time, though the condition does not keep photo 2.
    third = client.get("/v1/images", params={"where": "path = '2.jpg'"}).json()["images"][0]["id"]
    assert _list(client, sort="taken", where="path != '2.jpg'", after=third) == (["1.jpg", "4.jpg"], None)
    gone = client.get("/v1/images", params={"sort": "taken", "after": 999})
    assert (gone.status_code, gone.json()["error"]["field"]) == (409, "after")
    assert _list(client, sort="taken", where="taken >= 2021-03 AND taken < 2023-01-01") == (["0.jpg", "2.jpg"], None)
    assert list(_count(client).items()) == [("2023", 1), ("2021", 2), ("2019", 1)]
    assert _count(client, where="taken > 2020-01-01") == {"2023-12": 1, "2021-03": 2}
    refused = client.get("/v1/images", params={"sort": "label, id"})
    assert refused.status_code == 422


def test_no_answer_has_a_place_unless_the_server_shall_show_it(client: TestClient, described: Path) -> None:
    for path in ("images/1", "images?include=metadata", "facets", "gallery"):
        assert "gps_" not in client.get(f"/v1/{path}").text
    assert client.get("/v1/images", params={"text": "2.5"}).json()["total"] == 0
    for asked in ({"sort": "gps_latitude"}, {"where": "gps_latitude > 10"}):
        assert client.get("/v1/images", params=asked).status_code == 422
    exported = client.post("/v1/export", json={"ids": [1], "format": "csv"}).text
    assert ("NIKON D750" in exported, "gps_" in exported) == (True, False)
    with serve(described, config=ServingConfig(threads=1, show_gps=True)) as shown:
        assert shown.get("/v1/images/1").json()["metadata"]["gps_longitude"] == 2.5
        assert shown.get("/v1/images", params={"where": "gps_latitude = 48"}).json()["total"] == len(TIMES)
