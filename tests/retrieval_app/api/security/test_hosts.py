from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from index.errors import InputError
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.hosts import HostNames, check_host, choose_hosts, is_loopback, read_host
from tests.retrieval_app.api.conftest import serve


def _admits(hosts: HostNames, *given: str, local: str = "127.0.0.1") -> bool:
    scope: dict[str, Any] = {"type": "http", "server": (local, 7860)}
    return hosts.admit(scope, Headers(raw=[(b"host", text.encode()) for text in given]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("photos.Example.org.", "photos.example.org"), ("0:0:0:0:0:0:0:1", "::1"), ("::ffff:192.0.2.1", "192.0.2.1"),
        ("my_box", "my_box"), ("", None), ("..", None), ("a..b", None), ("-a", None), ("a b", None), ("a/b", None),
        ("a@b", None), ("é.example", None), ("a\n", None),
    ],
)  # fmt: skip
def test_names_and_addresses_are_compared_in_one_form(text: str, name: str | None) -> None:
    assert read_host(text) == name


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "localhost.", "localhost.:7860", "127.0.0.1:1", "[::1]", "[::1]:7860",
     "[0:0:0:0:0:0:0:1]:80", "[::ffff:127.0.0.1]:80"],
)  # fmt: skip
def test_every_server_answers_to_the_names_of_its_own_machine(host: str) -> None:
    for hosts in (
        HostNames(),
        choose_hosts("127.0.0.1", loopback=True, token=False),
        choose_hosts("0.0.0.0", loopback=False, token=False),
        choose_hosts("0.0.0.0", loopback=False, token=True, allowed=["photos.example.org"]),
    ):
        assert _admits(hosts, host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1]evil", "127.0.0.1:x", "0",
     "localhost:80:80", "localhost:123456", "::1", "[localhost]", "localhost@evil.example", "localhost/x", "127.1",
     "192.0.2.7"],
)  # fmt: skip
def test_a_loopback_server_answers_to_no_other_name(host: str) -> None:
    for token in (False, True):
        assert not _admits(choose_hosts("127.0.0.1", loopback=True, token=token), host)


def test_a_request_names_one_host() -> None:
    assert not _admits(HostNames())
    assert not _admits(HostNames(), "localhost", "localhost")
    assert not _admits(HostNames(any_name=True), "localhost", "evil.example")


def test_without_a_token_another_address_answers_to_the_machines_names_alone() -> None:
    hosts = choose_hosts("0.0.0.0", loopback=False, token=False)
    assert _admits(hosts, "192.0.2.7:7860", local="192.0.2.7")
    assert _admits(hosts, "[2001:db8::7]:7860", local="2001:db8::7")
    assert _admits(hosts, "192.0.2.7", local="::ffff:192.0.2.7")
    assert _admits(hosts, f"{socket.gethostname().upper()}.:7860", local="192.0.2.7")
    assert not _admits(hosts, "evil.example:7860", local="192.0.2.7")
    assert not _admits(hosts, "192.0.2.8", local="192.0.2.7")
    named = choose_hosts("box.example.org", loopback=False, token=False)
    assert _admits(named, "box.example.org", local="192.0.2.7")


def test_with_a_token_another_address_answers_to_any_name_unless_names_are_given() -> None:
    assert _admits(choose_hosts("0.0.0.0", loopback=False, token=True), "any.example")
    chosen = choose_hosts("0.0.0.0", loopback=False, token=True, allowed=["photos.example.org"])
    assert not _admits(chosen, "any.example")
    assert _admits(chosen, "photos.example.org")


def test_names_that_are_given_are_answered_to_however_they_are_written() -> None:
    hosts = choose_hosts("127.0.0.1", loopback=True, token=False, allowed=["Photos.Example.ORG.", "[2001:db8::5]"])
    for host in ("photos.example.org", "PHOTOS.example.org:8443", "photos.example.org.:443", "[2001:db8:0::5]:80"):
        assert _admits(hosts, host)
    assert not _admits(hosts, "example.org")
    assert not _admits(hosts, "a.photos.example.org")


@pytest.mark.parametrize("text", ["", "*", "https://photos.example.org", "photos.example.org:443", "a b", "*.org"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--allowed-host"):
        check_host(text)


@pytest.mark.parametrize(
    ("host", "known"),
    [("127.0.0.1", True), ("127.0.0.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.1", False), ("box", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host: str, known: bool) -> None:
    assert is_loopback(host) is known


@pytest.fixture(scope="module")
def public(served: Path) -> Iterator[TestClient]:
    """A server without a token, on another address than loopback."""
    hosts = choose_hosts("0.0.0.0", loopback=False, token=False, allowed=["photos.example.org"])
    with serve(served, access=Access(loopback=False, hosts=hosts)) as client:
        yield client


def test_a_name_that_others_point_here_gets_a_refusal_that_names_the_option(public: TestClient) -> None:
    for path in ("/v1/gallery", "/v1/health", "/", "/page/core/dom.js"):
        response = public.get(path, headers={"Host": "rebound.evil.example:7860"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "host")
        assert "--allowed-host" in response.json()["error"]["message"]
        assert "evil" not in response.text
    assert public.get("/v1/gallery", headers={"Host": "photos.example.org"}).status_code == 200
