"""What names folders of the machine: no answer to a stranger does, whatever is asked."""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app.api.security.access import Access
from tests.conftest import draw_folder
from tests.retrieval_app.api.conftest import TOKEN, serve
from tests.waiting import wait_for

PLACE = "a-private-place"  # a part of every absolute path, and of no other text
FORWARDED = {"X-Forwarded-For": "198.51.100.1"}
STRANGERS = {"on another address": (Access(loopback=False), {}), "through a proxy": (Access(), FORWARDED)}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of two folders and a table, with decisions, some of whose files are gone."""
    folder = tmp_path_factory.mktemp("api") / PLACE
    first, second = draw_folder(folder / "first"), draw_folder(folder / "second")
    (folder / "elsewhere").mkdir()
    odd = folder / "elsewhere" / "odd.png"
    next(iter(sorted(first.rglob("*.png")))).rename(odd)
    (folder / "tables").mkdir()
    (folder / "tables" / "table.csv").write_text(f"path,label\n{odd},odd\n../second/red/1.png,table\n")
    packed = folder / "tables" / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:  # of which the metadata names a folder
        archive.write(second / "red" / "0.jpg", "noted.jpg")
        archive.writestr("noted.json", json.dumps({"from": [{"path": str(odd)}], "path": str(odd)}))
    sources = [first, second, folder / "tables" / "table.csv", packed]
    build_gallery(model_path=tiny_model, sources=sources, out=folder / "gallery")
    gallery = Gallery.open(folder / "gallery")
    gone = gallery.place(int(gallery.ids[0])).file
    with serve(folder / "gallery", access=Access()) as client:
        ids = [int(number) for number in gallery.ids[:2]]
        decisions = [{"image_id": number, "decision": "drop"} for number in ids]
        assert client.post("/v1/labels/decisions", json={"decisions": decisions}).status_code == 200
        groups = _ask_ready(client, "/v1/duplicates").json()["items"]
        assert groups, "the two folders hold the same images"
        body = {"group": groups[0]["group"], "decision": "different"}
        assert client.post("/v1/duplicates/decisions", json=body).status_code == 200
    gone.unlink()
    return folder / "gallery"


@pytest.fixture(scope="module", params=STRANGERS)
def stranger(private: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    access, headers = STRANGERS[request.param]
    with serve(private, access=access) as client:
        client.headers.update(headers)
        yield client


def _ask_ready(client: TestClient, path: str) -> Any:
    return wait_for(lambda: answer if (answer := client.get(path)).status_code != 202 else None)


def _list_reads(client: TestClient) -> list[str]:
    """Every GET of the API, with ids that are and are not, and all that can be asked for."""
    paths: Mapping[str, Any] = client.get("/v1/openapi.json").json()["paths"]
    ids = [image["id"] for image in client.get("/v1/images?limit=500").json()["images"]]
    assert len(ids) > 10
    asked = []
    for template, methods in paths.items():
        if "get" not in methods:
            continue
        values = ids[:6] if "{image_id}" in template else ["0123456789abcdef"]
        for value in [*values, "999999", "..%2f..%2fetc"] if "{" in template else [""]:
            asked.append(re.sub(r"\{\w+\}", str(value), template))
    everything = "include=label&include=path&include=source&include=metadata&limit=500"
    asked += [f"/v1/images?{everything}", "/v1/images?limit=50&seed=0&include=source,path,metadata"]
    asked += [f"{path}?state=all&limit=100" for path in ("/v1/labels/issues", "/v1/duplicates")]
    asked += ["/v1/images?where=sourc = 1", "/v1/images?where=(", "/v1/nothing", "/v1/images?after=x"]
    return asked


def test_no_answer_to_a_stranger_names_a_folder(stranger: TestClient, private: Path) -> None:
    reads = _list_reads(stranger)
    assert len(reads) > 60
    for path in reads:
        answer = _ask_ready(stranger, path)
        assert PLACE not in answer.text, path
        assert PLACE.encode() not in answer.content, path
    for name, value in stranger.get("/v1/labels/file").headers.items():
        assert PLACE not in f"{name}{value}"


def test_no_search_or_export_of_a_stranger_names_a_folder(stranger: TestClient) -> None:
    ids = [image["id"] for image in stranger.get("/v1/images?limit=500").json()["images"]]
    one = {"queries": [{"image_id": ids[3]}], "k": 50, "include": ["label", "path", "source", "metadata"]}
    bodies: list[tuple[str, Any]] = [
        ("/v1/search", one),
        ("/v1/search", {"queries": [{"image_id": ids[0], "crop": {"x": 0, "y": 0, "width": 0.5, "height": 0.5}}]}),
        ("/v1/export", {"ids": ids, "format": "csv"}),
        ("/v1/labels/undo", {}),
        ("/v1/update", {}),
    ]
    for path, body in bodies:
        assert PLACE not in stranger.post(path, json=body).text, path
    archive = stranger.post("/v1/export", json={"ids": ids, "format": "zip"})
    assert archive.status_code == 200
    with zipfile.ZipFile(io.BytesIO(archive.content)) as opened:
        assert PLACE.encode() not in opened.read("list.csv")


def test_no_condition_of_a_stranger_tries_folders_out(stranger: TestClient) -> None:
    for where in (
        "source LIKE '/%'",
        "NOT (label = 'x' OR source > '/a')",
        "source IS NOT NULL",
        "metadata.path LIKE '/%'",
    ):
        for answer in (
            stranger.get("/v1/images", params={"where": where}),
            stranger.get("/v1/facets", params={"where": where}),
            stranger.post("/v1/search", json={"queries": [{"image_id": 1}], "where": where}),
            stranger.post("/v1/search/image", params={"where": where}, content=b"x"),
        ):
            error = answer.json()["error"]
            assert (answer.status_code, error["field"]) == (422, "where"), error
    assert stranger.get("/v1/images", params={"where": "path != 'source'"}).status_code == 200
    for group_by, status in (("source", 422), ("metadata.path", 422), ("nothing", 422), ("folder", 200)):
        asked = stranger.post("/v1/search", json={"queries": [{"text": "red"}], "group_by": group_by})
        assert asked.status_code == status, group_by
        if group_by != "folder":
            assert stranger.get("/v1/images", params={"sort": f"-{group_by}"}).status_code == status, group_by
    totals = [stranger.get("/v1/images", params={"text": word}).json()["total"] for word in (PLACE, "red/", "noted")]
    assert totals[0] == 0 < min(totals[1:])
    where = {"where": f"path LIKE '%{PLACE}%'"}
    assert stranger.get("/v1/images", params=where).json()["total"] == 0
    assert "source" not in {facet["name"] for facet in stranger.get("/v1/facets").json()["facets"]}


def test_on_the_machine_itself_and_with_the_token_folders_are_told(private: Path) -> None:
    friend = {"Authorization": f"Bearer {TOKEN}"}
    for access, headers in ((Access(), {}), (Access(token=TOKEN, loopback=False), {**friend, **FORWARDED})):
        with serve(private, access=access) as client:
            client.headers.update(headers)
            number = client.get("/v1/images?limit=2").json()["images"][1]["id"]
            assert PLACE in client.get(f"/v1/images/{number}").json()["source"]
            for path in ("/v1/labels/file", "/v1/labels/decisions", "/v1/facets"):
                assert PLACE in client.get(path).text, path
            where = {"where": "source LIKE '%first'"}
            assert client.get("/v1/images", params=where).json()["total"] > 0
            where = {"where": f"path LIKE '%{PLACE}%'"}
            assert client.get("/v1/images", params=where).json()["total"] > 0
            assert client.get("/v1/images", params={"text": PLACE}).json()["total"] > 0


def test_a_strangers_label_file_has_the_paths_within_the_sources(stranger: TestClient) -> None:
    lines = stranger.get("/v1/labels/file").text.splitlines()
    assert lines[0] == "path,label,given,p_right"
    assert len(lines) > 5
    assert all(not line.startswith("/") for line in lines)
    assert any(line.startswith("red/") for line in lines)
    assert stranger.get("/v1/labels/file?paths=relative").text.splitlines() == lines
    assert stranger.get("/v1/labels/file?paths=absolute").status_code == 403
