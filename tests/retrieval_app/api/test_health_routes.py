from __future__ import annotations

import shutil
import time
from pathlib import Path

from fastapi.testclient import TestClient

from retrieval_app.api.security.access import Access
from tests.retrieval_app.api.conftest import TOKEN, serve


def test_a_served_gallery_is_alive_and_ready(client: TestClient) -> None:
    assert client.get("/v1/health").json() == {"status": "alive"}
    ready = client.get("/v1/ready").json()
    assert (ready["status"], ready["version"], ready["problem"]) == ("ready", "000001", None)


def test_a_broken_version_is_told_while_the_one_before_is_served(served: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(served, copy)
    with serve(copy, access=Access(token=TOKEN)) as client:
        (copy / "CURRENT").write_text("000002 " + "0" * 64 + "\n")
        client.app.state.engine.live.refresh()  # type: ignore[attr-defined]
        friend = {"Authorization": f"Bearer {TOKEN}"}
        stranger, told = client.get("/v1/ready").json(), client.get("/v1/ready", headers=friend).json()
        assert stranger["version"] == told["version"] == "000001"
        assert str(copy) in told["problem"]
        assert "log" in stranger["problem"]
        assert str(copy) not in stranger["problem"]
        assert client.get("/v1/images", headers=friend).status_code == 200


def test_a_gallery_that_cannot_be_searched_is_not_ready(served: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(served, copy)
    friend = {"Authorization": f"Bearer {TOKEN}"}
    with serve(copy, access=Access(token=TOKEN)) as client:
        assert client.get("/v1/ready").status_code == 200
        (catalog,) = copy.glob("versions/*/catalog.sqlite")
        catalog.chmod(0o600)
        with catalog.open("r+b") as file:  # the file that the server has open
            file.write(bytes(file.seek(0, 2)))
            file.seek(0)
            file.write(b"no database" * 1000)
        deadline = time.monotonic() + 20  # what was found before is told for a moment
        while (stranger := client.get("/v1/ready")).status_code == 200:
            assert time.monotonic() < deadline
        told = client.get("/v1/ready", headers=friend)
        assert stranger.status_code == told.status_code == 503
        assert stranger.json()["error"]["code"] == told.json()["error"]["code"] == "not_ready"
        assert stranger.headers["retry-after"]
        assert str(copy) in told.json()["error"]["message"]
        assert str(copy) not in stranger.text
        assert client.get("/v1/health").json() == {"status": "alive"}


def test_requests_are_counted_by_route_template(client: TestClient, image_ids: dict[str, int]) -> None:
    for image_id in list(image_ids.values())[:3]:
        client.get(f"/v1/images/{image_id}/vector")
    client.get("/v1/no/such/place")
    client.request("PROPFIND", "/v1/health")
    text = client.get("/v1/metrics").text
    assert 'retrieval_requests_total{method="GET",route="/v1/images/{image_id}/vector",status="200"} 3.0' in text
    assert 'route="none",status="404"' in text
    assert 'method="other"' in text
    assert "/no/such" not in text
    assert "PROPFIND" not in text
