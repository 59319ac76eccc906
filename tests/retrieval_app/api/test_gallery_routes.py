import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.versions.gallery_identity import lock_gallery
from index.writing.copying import cluster_gallery
from retrieval_app.api.gallery_routes import GalleryMap, QualityReport
from retrieval_app.api.security.access import Access
from tests.retrieval_app.api.conftest import TOKEN, serve
from tests.retrieval_app.conftest import build_small_gallery
from tests.retrieval_app.review.test_jobs import picture


def wait_for(client: TestClient, path: str) -> dict[str, Any]:
    while (response := client.get(path)).status_code == 202:
        assert response.json().keys() == {"state", "done", "total", "behind"}
        time.sleep(0.05)
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


def test_the_map_and_the_quality_are_told_as_they_are_described(client: TestClient) -> None:
    answer = GalleryMap.model_validate(wait_for(client, "/v1/map"))
    assert len(answer.ids) == len(answer.x) == len(answer.y) == len(answer.label) == answer.total == 19
    assert all(-1 <= label < len(answer.labels) for label in answer.label)
    quality = QualityReport.model_validate(wait_for(client, "/v1/quality"))
    assert (quality.version, quality.queries, quality.problem) == ("000001", 19, None)


@pytest.fixture(scope="module")
def writer(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access(token=TOKEN, writable=True)) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


def finish(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    while job["state"] not in ("done", "failed", "cancelled"):
        job = client.get(f"/v1/jobs/{job['job']}").json()
        time.sleep(0.02)
    return job


def test_an_image_is_added_found_and_removed(writer: TestClient) -> None:
    response = writer.post("/v1/images", params={"name": "new.jpg", "label": "yellow"}, content=picture(1))
    assert response.status_code == 202
    job = finish(writer, response.json())
    assert (job["state"], job["kind"]) == ("done", "add")
    image_id = job["result"]["image_id"]
    assert writer.get(f"/v1/images/{image_id}").json()["label"] == "yellow"
    assert writer.get(f"/v1/images/{image_id}/thumbnail").status_code == 200
    removed = writer.delete(f"/v1/images/{image_id}")
    assert removed.status_code == 202
    assert finish(writer, removed.json())["state"] == "done"
    assert writer.get(f"/v1/images/{image_id}").status_code == 404
    assert writer.delete(f"/v1/images/{image_id}").status_code in (404, 422)


def test_a_job_is_cancelled_while_it_waits_or_is_over(writer: TestClient, served: Path) -> None:
    with lock_gallery(served):
        update, added = writer.post("/v1/update").json(), writer.post("/v1/images", content=picture(7)).json()
        assert writer.delete(f"/v1/jobs/{added['job']}").json()["state"] == "cancelled"
        assert writer.delete(f"/v1/jobs/{update['job']}").status_code == 200
        assert finish(writer, update)["state"] == "cancelled"
    assert writer.get(f"/v1/jobs/{added['job']}").json()["message"] == "cancelled before its turn"
    done = finish(writer, writer.post("/v1/update").json())
    refused = writer.delete(f"/v1/jobs/{done['job']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert writer.delete("/v1/jobs/0123456789abcdef").status_code == 404


@pytest.mark.parametrize("access", [Access(writable=True), Access(token=TOKEN), Access(loopback=False, writable=True)])
def test_without_the_flag_and_a_token_nothing_is_written(served: Path, access: Access) -> None:
    with serve(served, access=access) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.get("/v1/gallery").json()["permissions"]["write"] is False
        for method, path in (("POST", "/v1/images"), ("DELETE", "/v1/images/1"), ("POST", "/v1/update")):
            response = client.request(method, path, content=picture(4) if path == "/v1/images" else b"")
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")


def test_the_map_has_the_clusters_of_its_images(tmp_path: Path, tiny_model: Path) -> None:
    gallery = build_small_gallery(tmp_path, model=tiny_model)
    cluster_gallery(gallery, count=3)
    with serve(gallery) as client:
        found = wait_for(client, "/v1/map")
        shown = {found["clusters"][place] for place in found["cluster"]}
        assert len(found["cluster"]) == len(found["ids"])
        facets = {facet["name"]: facet for facet in client.get("/v1/facets").json()["facets"]}
        assert shown == set(found["clusters"]) == {value["value"] for value in facets["cluster"]["values"]}
