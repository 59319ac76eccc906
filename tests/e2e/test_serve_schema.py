"""Every answer of the API is as its own OpenAPI document says, whatever is asked."""

import copy
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode

from tests.conftest import draw_folder
from tests.index.galleries import build
from tests.index.hostile import PHOTO, encode
from tests.models import EMBEDDING_DIM
from tests.serving_server import TOKEN, Server, serve

MAKE_A_VERSION = ("POST /v1/images", "DELETE /v1/images/{image_id}", "POST /v1/update")
"""Asked last: of a new version nothing is computed, and what was asked for may be gone."""
VALID_BUT_REFUSED = ["2xx", "404", "409", "422", "503"]
"""A vector of another width, a condition that cannot be read, an id that the gallery has not: no schema says that."""


@pytest.fixture
def server(tmp_path: Path, tiny_model: Path) -> Iterator[Server]:
    """A server that may be written, of each test's own: what one test removes another would miss."""
    images = draw_folder(tmp_path / "images", per_class=15)
    (images / "red" / "copy.jpg").write_bytes((images / "red" / "0.jpg").read_bytes())
    (images / "blue" / "wrong.png").write_bytes((images / "green" / "1.png").read_bytes())
    build(images, tmp_path / "gallery", tiny_model)
    options = ("--writable", "--allow-disk-changes", str(tmp_path / "moved"))
    with serve(tmp_path / "gallery", *options, log=tmp_path / "log", token=TOKEN) as server:
        yield server
        assert server.process.poll() is None
        assert "Traceback" not in server.log.read_text()


@dataclass
class Interview:
    """Asks a server by its schema, and remembers what it answered."""

    server: Server
    refuses_all_wrong: bool = False  # at random, a parameter that is sent twice breaks the schema on paper only
    complaints: dict[str, list[str]] = field(default_factory=dict)
    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        image = strategies.sampled_from([encode(PHOTO, "PNG"), encode(PHOTO, "JPEG"), b"GIF89a", b""])
        schemathesis.openapi.format("binary", image | strategies.binary(max_size=100))
        checks = {
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
            "positive_data_acceptance": {"expected-statuses": VALID_BUT_REFUSED},
            "ignored_auth": {"enabled": False},  # every request brings the token; others are tested elsewhere
        }
        document = self.server.get("/v1/openapi.json").json()
        if not self.refuses_all_wrong:
            checks["negative_data_rejection"] = {"enabled": False}
        config = {"checks": checks, "generation": {"with-security-parameters": False}}
        self.schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))
        narrowed = narrow(document, find_names(self.server))
        self.known = schemathesis.openapi.from_dict(narrowed, config=SchemathesisConfig.from_dict(config))

    def ask_at_random(self, *, examples: int) -> None:
        """Send every route requests about things that there are, and a third as many that are wrong."""
        for schema, mode in ((self.known, GenerationMode.POSITIVE), (self.schema, GenerationMode.NEGATIVE)):
            options = settings(
                max_examples=examples if schema is self.known else examples // 3,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            operations = [result.ok() for result in schema.get_all_operations()]
            for operation in sorted(operations, key=lambda operation: operation.label in MAKE_A_VERSION):
                strategy = operation.as_strategy(generation_mode=mode)
                with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
                    options(given(case=strategy)(lambda case: self.ask(case)))()

    def ask_at_bounds(self) -> None:
        """Send each parameter's and field's smallest and largest values, those just outside, and other methods."""
        for operation in (result.ok() for result in self.schema.get_all_operations()):
            for case in self.schema.iter_coverage_cases(
                operation, generation_modes=list(GenerationMode), generation_config=self.schema.config.generation
            ):
                self.ask(case)

    def ask(self, case: Any) -> None:
        """Ask once, and note what is wrong with the answer."""
        label = case.operation.label
        response = case.call(base_url=self.server.url, session=self.session, headers=self.server.headers())
        self.statuses[label][response.status_code] += 1
        try:
            case.validate_response(response, additional_checks=[check_error])
        except FailureGroup as failures:
            found = self.complaints.setdefault(label, [])
            if len(found) < 3:
                shown = "; ".join(str(failure) for failure in failures.exceptions)
                found.append(f"{shown[:700]} {response.status_code}: {case.as_curl_command()[:500]}")

    def unanswered(self) -> set[str]:
        """The routes that never did what they are for."""
        return {label for label, found in self.statuses.items() if not any(status < 400 for status in found)}


def find_names(server: Server) -> dict[str, list[Any]]:
    """What there is: the values of parameters that nobody guesses."""
    while server.get("/v1/duplicates").status == 202:
        time.sleep(0.1)
    photo = server.ask("POST", "/v1/photos", body=encode(PHOTO, "PNG")).json()["photo"]
    jobs = [server.post("/v1/update", {}).json()["job"], cancel_job(server)]
    group = server.get("/v1/duplicates").json()["items"][0]
    ids = [image["id"] for image in server.get("/v1/images?limit=500").json()["images"]]
    return {
        "photo": [photo],
        "token": [photo],
        "job": jobs,
        "group": [group["group"]],
        "image_id": ids,
        "vector": [[0.5] * EMBEDDING_DIM, list(range(EMBEDDING_DIM))],
        "ids": ids,
        "keep": [image["id"] for image in group["images"]],
        "where": ["label = 'red'", "label IS NULL"],
        "text": ["red", ""],
        "tag": ["best"],
    }


def cancel_job(server: Server) -> str:
    """A job that was cancelled before its turn; asked for again, it is so still."""
    for _ in range(20):
        server.ask("POST", "/v1/update")  # which the other waits for
        job = str(server.ask("POST", "/v1/images", body=encode(PHOTO, "PNG")).json()["job"])
        answer = server.ask("DELETE", f"/v1/jobs/{job}")
        if answer.status == 200 and answer.json()["state"] == "cancelled":
            return job
    raise AssertionError("every job is done before it can be cancelled")


def narrow(document: dict[str, Any], names: dict[str, list[Any]]) -> dict[str, Any]:
    """A copy of the schema in which what is asked with is only what there is."""
    document = copy.deepcopy(document)
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    for name in find_references(document, [operation.get("requestBody") for operation in operations]):
        schema = document["components"]["schemas"][name]
        fields = schema.get("properties", {})
        for name in names.keys() & fields.keys():
            if fields[name].get("type") == "array" and name != "vector":
                fields[name]["items"] = {"enum": names[name]}
            else:
                fields[name] = {"enum": names[name]}
        if {"ids", "where", "count"} <= fields.keys():  # either ids or a condition, here one that finds something
            schema["required"] = [*schema.get("required", ()), "where"]
            fields["where"] = {"enum": [f"id = {image_id}" for image_id in names["ids"]]}
            for name in ("ids", "text", "count"):
                del fields[name]
    for parameter in (parameter for operation in operations for parameter in operation.get("parameters", ())):
        if parameter["name"] in names:
            parameter["schema"] = {"enum": names[parameter["name"]]}
    return document


def find_references(document: dict[str, Any], part: Any) -> set[str]:
    """The names of all schemas that a part of the document refers to."""
    found, left = set[str](), [part]
    while left:
        new = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(left.pop()))) - found
        found |= new
        left.extend(document["components"]["schemas"][name] for name in new)
    return found


def check_error(_: Any, response: Any, case: Any) -> None:
    """Every refusal is the one JSON that all refusals are, and names no place of this machine."""
    assert response.headers["x-content-type-options"] == ["nosniff"]
    if response.status_code < 400:
        return
    answer = response.json()
    assert set(answer) == {"error", "request_id"}
    assert set(answer["error"]) == {"code", "message", "field"}
    assert answer["error"]["message"].strip()
    assert response.headers["x-request-id"] == [answer["request_id"]]
    if response.status_code == 503:
        assert int(response.headers["retry-after"][0]) >= 1


def test_what_is_answered_is_what_the_schema_says(server: Server) -> None:
    interview = Interview(server)
    interview.ask_at_random(examples=6)
    assert not interview.complaints, "\n".join(map(str, interview.complaints.values()))
    assert len(interview.statuses) >= 35
    # One asks public addresses only, the other mends splits, which this gallery has none of.
    assert interview.unanswered() <= {"POST /v1/leaks"}


def test_what_is_answered_at_every_bound_of_every_parameter_is_what_the_schema_says(server: Server) -> None:
    interview = Interview(server, refuses_all_wrong=True)
    interview.ask_at_bounds()
    assert not interview.complaints, "\n".join(map(str, interview.complaints.values()))
    assert sum(found.total() for found in interview.statuses.values()) > 1000
