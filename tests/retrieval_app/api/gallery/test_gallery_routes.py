from __future__ import annotations

import time
from typing import Any

from fastapi.testclient import TestClient

from retrieval_app.api.gallery.gallery_schemas import GalleryMap, QualityReport


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
    assert facts["can"] == {"review": True, "write": False, "fetch": False}


def test_facets_count_what_the_condition_keeps_and_their_conditions_select_it(client: TestClient) -> None:
    facets = client.get("/v1/facets").json()
    labels = next(facet for facet in facets["facets"] if facet["name"] == "label")
    for value in labels["values"]:
        kept = client.get("/v1/images", params={"where": value["where"]}).json()
        assert kept["total"] == value["count"]
    narrowed = client.get("/v1/facets", params={"where": "label = 'blue'", "text": "png"}).json()
    assert narrowed["total"] == 2


def test_the_map_and_the_quality_are_told_as_they_are_described(client: TestClient) -> None:
    answer = GalleryMap.model_validate(wait_for(client, "/v1/map"))
    assert len(answer.ids) == len(answer.x) == len(answer.y) == len(answer.label) == answer.total == 19
    assert all(-1 <= label < len(answer.labels) for label in answer.label)
    quality = QualityReport.model_validate(wait_for(client, "/v1/quality"))
    assert (quality.version, quality.queries, quality.problem) == ("000001", 19, None)
