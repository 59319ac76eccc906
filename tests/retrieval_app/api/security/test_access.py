from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from index.errors import InputError
from retrieval_app.api.security.access import Access
from tests.retrieval_app.api.conftest import TOKEN, serve

FRIEND = {"Authorization": f"Bearer {TOKEN}"}
PROXIED = [
    {"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-For": ""}, {"Forwarded": "for=127.0.0.1"}, {"Via": "1.1 proxy"},
    {"X-Real-IP": "127.0.0.1"}, {"X-Forwarded-Proto": "https"}, {"X-Forwarded-Host": "127.0.0.1"},
    {"CF-Connecting-IP": "127.0.0.1"}, {"X-Forwarded": "1"},
]  # fmt: skip


@pytest.fixture(scope="module")
def open_to_all(served: Path) -> Iterator[TestClient]:
    """A server that others reach, and that asks for no token."""
    with serve(served, access=Access(loopback=False)) as client:
        yield client


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(InputError, match="a token has 16 to 512 characters"):
        Access(token="with a space in the middle")


def test_decisions_need_this_machine_or_a_token(client: TestClient, open_to_all: TestClient, served: Path) -> None:
    assert client.get("/v1/gallery").json()["can"] == {"review": True, "write": False, "fetch": False}
    assert open_to_all.get("/v1/gallery").json()["can"] == {"review": False, "write": False, "fetch": False}
    with serve(served, access=Access(loopback=False, token=TOKEN, writable=True)) as friend:
        assert friend.get("/v1/gallery", headers=FRIEND).json()["can"] == {
            "review": True,
            "write": True,
            "fetch": False,
        }
    with serve(served, access=Access(token=TOKEN)) as friend:
        assert friend.get("/v1/gallery", headers=FRIEND).json()["can"] == {
            "review": True,
            "write": False,
            "fetch": False,
        }


@pytest.mark.parametrize("headers", PROXIED, ids=lambda headers: next(iter(headers)))
def test_behind_a_proxy_on_this_machine_nobody_is_of_this_machine(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert client.get("/v1/gallery", headers=headers).json()["can"]["review"] is False
    refused = client.post("/v1/labels/undo", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert client.post("/v1/evaluate", json={}, headers=headers).status_code == 403


def test_the_token_decides_through_a_proxy_as_well(served: Path) -> None:
    with serve(served, access=Access(token=TOKEN)) as client:
        response = client.post("/v1/labels/undo", headers={**FRIEND, "X-Forwarded-For": "203.0.113.9"})
        assert response.status_code == 200


def test_a_token_that_nobody_asks_for_opens_nothing(open_to_all: TestClient) -> None:
    for text in (TOKEN, "", "None"):
        headers = {"Authorization": f"Bearer {text}"}
        assert open_to_all.get("/v1/gallery", headers=headers).json()["can"]["review"] is False
