import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException

from index.errors import (
    GalleryDamagedError,
    ImageError,
    InputError,
    MissingDependencyError,
    ModelFileError,
    UnknownImageError,
)
from retrieval_app.api.errors import ApiError, add_error_handlers, refuse_with
from retrieval_app.api.schemas import SearchRequest
from retrieval_app.api.security.rights import ALL, Visitor, keep_visitor
from retrieval_app.review.database import DecidedSinceError, ReviewError
from retrieval_app.review.jobs import UnknownJobError
from retrieval_app.serving.errors import BusyError, NotReadyError, TimedOutError, UnknownPhotoError
from tests.retrieval_app.api.conftest import TOKEN

RAISED: dict[str, tuple[Exception, int, str]] = {
    "input": (InputError("k is wrong"), 422, "invalid"),
    "image": (ImageError(path="a.jpg", reason="corrupt", detail="cut off"), 422, "bad_image"),
    "unknown": (UnknownImageError(7, gallery="g"), 404, "not_found"),
    "photo": (UnknownPhotoError(), 404, "not_found"),
    "job": (UnknownJobError(), 404, "not_found"),
    "busy": (BusyError("busy", retry_after_s=3), 503, "busy"),
    "unready": (NotReadyError("empty"), 503, "not_ready"),
    "late": (TimedOutError("too long"), 503, "timeout"),
    "damaged": (GalleryDamagedError("/srv/secret/g", "damaged"), 503, "gallery_unusable"),
    "review": (ReviewError(Path("/srv/secret/review.sqlite"), "no database"), 409, "review_unusable"),
    "since": (DecidedSinceError(), 409, "conflict"),
    "model": (ModelFileError("/srv/secret/model.onnx", "no model"), 500, "internal"),
    "extra": (MissingDependencyError(package="p", extra="ui", purpose="it"), 500, "internal"),
    "ours": (ApiError("no", status=409, code="odd", field="x"), 409, "odd"),
    "http": (HTTPException(418, "short and stout"), 418, "error"),
    "bug": (KeyError("secret /path"), 500, "internal"),
}


@pytest.fixture(scope="module")
def raising() -> Iterator[TestClient]:
    app = FastAPI(docs_url=None, redoc_url=None)
    add_error_handlers(app)

    @app.middleware("http")
    async def recognise(request: Request, go_on: Any) -> Any:
        known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        request.scope.setdefault("state", {})
        keep_visitor(request.scope, Visitor(has_token=known, rights=ALL if known else frozenset()))
        return await go_on(request)

    @app.get("/raise/{name}")
    async def fail(name: str) -> None:
        raise RAISED[name][0]

    @app.post("/search")
    async def search(body: SearchRequest) -> int:
        return body.k

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_every_failure_has_one_form_and_says_when_to_come_back(raising: TestClient) -> None:
    for name, (_, status, code) in RAISED.items():
        response = raising.get(f"/raise/{name}")
        body = response.json()
        assert (response.status_code, body["error"]["code"]) == (status, code)
        assert body.keys() == {"error", "request_id"}
        assert body["error"].keys() == {"code", "message", "field"}
    assert raising.get("/raise/busy").headers["retry-after"] == "3"
    assert "retry-after" in raising.get("/raise/unready").headers
    assert "retry-after" not in raising.get("/raise/late").headers  # it was begun, and is not to be sent again


@pytest.mark.parametrize("name", ["damaged", "review", "model"])
def test_folders_are_told_to_owners_only(raising: TestClient, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        told = raising.get(f"/raise/{name}").json()["error"]["message"]
    assert "secret" not in told
    assert "log" in told
    assert "/srv/secret" in caplog.text
    friend = raising.get(f"/raise/{name}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert "/srv/secret" in friend.json()["error"]["message"]


def test_a_bug_is_logged_and_not_told(raising: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = raising.get("/raise/bug")
    assert "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queries": [{"image_id": 1}], "k": 0}, "k"),
        ({"queries": [{"image_id": 1, "crop": {"x": 2, "y": 0, "width": 1, "height": 1}}]}, "queries.0.crop.x"),
        ({"queries": [{"image_id": 1, "photo": "abcdefgh"}]}, "queries.0"),
        ({"queries": [{"image_id": 1}], "<b>": 1}, "<b>"),
        ({"queries": [{"image_id": 1}], "where": "a\0"}, "where"),
        ({"queries": [{"image_id": 10**30}]}, "queries.0.image_id"),
        ({"queries": [{"vector": [1, "2"]}]}, "queries.0.vector.1"),
    ],
)
def test_the_field_that_is_wrong_is_named(raising: TestClient, body: Any, field: str) -> None:
    response = raising.post("/search", json=body)
    assert (response.status_code, response.json()["error"]["field"]) == (422, field)


def test_texts_that_no_encoder_takes_are_told_all_the_same() -> None:
    body = refuse_with({}, 422, "half: \ud800", field="\udcff").body
    assert b"\\\\ud800" in bytes(body)


def test_every_number_text_and_list_that_is_taken_has_bounds(client: TestClient) -> None:
    described = client.get("/v1/openapi.json").json()
    for path, methods in described["paths"].items():
        for parameter in (one for operation in methods.values() for one in operation.get("parameters", ())):
            assert _is_bounded(parameter["schema"]), (path, parameter["name"])
    for name in ["SearchRequest", "MemberQuery", "VectorQuery", "Crop", "LabelChoice", "ExportRequest"]:
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
