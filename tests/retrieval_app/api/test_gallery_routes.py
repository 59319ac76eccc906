from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient


def wait_for(client: TestClient, path: str) -> dict[str, Any]:
    """The answer once it is computed."""
    for _ in range(600):
        response = client.get(path)
        if response.status_code != 202:
            break
        assert response.json().keys() == {"state", "done", "total"}
        time.sleep(0.05)
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


def test_the_gallery_tells_what_it_is_and_what_is_allowed(client: TestClient) -> None:
    facts = client.get("/v1/gallery").json()
    assert (facts["name"], facts["version"], facts["images"]) == ("small", "000001", 19)
    assert facts["labels"] == {"names": ["red", "blue", "green"], "count": 3, "labelled": 19}
    assert facts["can"] == {"review": True, "write": False}
    assert facts["limits"]["max_upload_bytes"] == 20 * 1024 * 1024
    assert facts["calibration"]["state"] in ("ready", "computing")
    assert facts["model"].keys() == {"backbone", "method", "sha256"}


def test_facets_count_what_the_condition_keeps_and_their_conditions_select_it(client: TestClient) -> None:
    facets = client.get("/v1/facets").json()
    labels = next(facet for facet in facets["facets"] if facet["name"] == "label")
    for value in labels["values"]:
        kept = client.get("/v1/images", params={"where": value["where"]}).json()
        assert kept["total"] == value["count"]
    narrowed = client.get("/v1/facets", params={"where": "label = 'blue'", "text": "png"}).json()
    assert narrowed["total"] == 2


def test_a_condition_that_cannot_be_read_is_told_with_its_field(client: TestClient) -> None:
    for field, text in (("where", "label = = 3"), ("text", " ".join(map(str, range(40))))):
        error = client.get("/v1/facets", params={field: text}).json()["error"]
        assert error["field"] == field


@pytest.mark.parametrize("path", ["/v1/quality", "/v1/map"])
def test_what_takes_long_is_told_to_be_on_its_way(client: TestClient, path: str) -> None:
    answer = wait_for(client, path)
    assert (answer["state"], answer["version"]) == ("ready", "000001")


def test_the_map_has_a_place_for_every_image(client: TestClient) -> None:
    answer = wait_for(client, "/v1/map")
    assert len(answer["ids"]) == len(answer["x"]) == len(answer["y"]) == len(answer["label"]) == 19
    assert all(-1 <= label < len(answer["labels"]) for label in answer["label"])
