from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.writing.build import build_gallery
from retrieval_app.api.security.access import Access
from tests.conftest import draw_folder
from tests.retrieval_app.api.conftest import serve


def list_operations(client: TestClient) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in client.get("/v1/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_operation_says_how_it_fails_in_the_one_form(client: TestClient) -> None:
    for path, method, operation in list_operations(client):
        failures = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        body = set() if method == "get" else {"403", "408", "411", "413", "415"}
        assert {"400", "401", "422", "500", "503", *body} <= failures.keys(), (path, method)
        for answer in failures.values():
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, (path, method)


def test_every_number_text_and_list_that_is_taken_has_bounds(client: TestClient) -> None:
    described = client.get("/v1/openapi.json").json()
    for path, method, operation in list_operations(client):
        for parameter in operation.get("parameters", ()):
            assert _is_bounded(parameter["schema"]), (path, method, parameter["name"])
    for name in [
        "SearchRequest",
        "BatchRequest",
        "MemberQuery",
        "VectorQuery",
        "Crop",
        "LabelChange",
        "ExportRequest",
    ]:
        schema = described["components"]["schemas"][name]
        assert schema["additionalProperties"] is False
        for field, inside in schema["properties"].items():
            assert _is_bounded(inside), (name, field)


def _is_bounded(schema: dict[str, Any]) -> bool:
    keys = schema.keys()
    match schema.get("type"):
        case "integer" | "number":
            return bool({"minimum", "exclusiveMinimum"} & keys and {"maximum", "exclusiveMaximum"} & keys)
        case "string":
            return bool({"maxLength", "pattern", "enum", "const"} & keys)
        case "array":
            return "maxItems" in schema and _is_bounded(schema["items"])
        case None:
            return all(map(_is_bounded, schema.get("anyOf", ())))
        case _:
            return True


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[TestClient]:
    """Serves a gallery whose labels and metadata are as hostile as tables allow."""
    folder = tmp_path_factory.mktemp("odd")
    draw_folder(folder / "images", per_class=2)
    rows = [
        ("red/0.jpg", "<script>alert(1)</script>", "${x} {{y}}", '"}, {"', "../../etc/passwd"),
        ("red/1.png", "=cmd()", "a\r\nSet-Cookie: b=c", "\u202egnp", "1e999"),
        ("blue/0.jpg", "caf\u00e9' OR 1=1 --", "", "\x1b[31m", "12345678901234567890123"),
    ]
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "<b>note</b>", 'quote"d', "id"])
        table.writerows((f"images/{path}", *others) for path, *others in rows)
    build_gallery(model_path=tiny_model, sources=[folder / "table.csv"], out=folder / "odd")
    with serve(folder / "odd", access=Access()) as client:
        yield client


def test_hostile_labels_and_metadata_are_data_like_any_other(odd: TestClient) -> None:
    everything = "label,path,source,metadata"
    listed = odd.get("/v1/images", params={"include": everything})
    assert (listed.status_code, listed.headers["content-type"]) == (200, "application/json")
    ids = [image["id"] for image in listed.json()["images"]]
    assert len(ids) == 3
    for image_id in ids:
        assert odd.get(f"/v1/images/{image_id}").status_code == 200
    body = {"queries": [{"image_id": ids[0]}], "include": everything.split(",")}
    assert odd.post("/v1/search", json=body).status_code == 200
    for facet in odd.get("/v1/facets").json()["facets"]:
        for value in facet["values"]:
            kept = odd.get("/v1/images", params={"where": value["where"]}).json()
            assert kept["total"] == value["count"], value
    for kind in ("csv", "zip"):
        assert odd.post("/v1/export", json={"ids": ids, "format": kind}).status_code == 200
