import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from index.errors import InputError
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.addresses import (
    HostNames,
    check_host,
    check_origins,
    choose_hosts,
    comes_from_another_site,
    is_loopback,
    read_host,
)
from tests.retrieval_app.api.conftest import TOKEN, serve


def _admits(hosts: HostNames, *given: str, local: str = "127.0.0.1") -> bool:
    scope: dict[str, Any] = {"type": "http", "server": (local, 7860)}
    return hosts.admit(scope, Headers(raw=[(b"host", text.encode()) for text in given]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("photos.Example.org.", "photos.example.org"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("my_box", "my_box"),
        ("", None),
        ("..", None),
        ("a..b", None),
        ("-a", None),
        ("a b", None),
        ("a/b", None),
        ("a@b", None),
        ("é.example", None),
        ("a\n", None),
    ],
)
def test_names_and_addresses_are_compared_in_one_form(text: str, name: str | None) -> None:
    assert read_host(text) == name


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "localhost.",
        "localhost.:7860",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:7860",
        "[0:0:0:0:0:0:0:1]:80",
        "[::ffff:127.0.0.1]:80",
    ],
)
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
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "[::1]evil",
        "127.0.0.1:x",
        "0",
        "localhost:80:80",
        "localhost:123456",
        "::1",
        "[localhost]",
        "localhost@evil.example",
        "localhost/x",
        "127.1",
        "192.0.2.7",
    ],
)
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
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("box", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, known: bool) -> None:
    assert is_loopback(host) is known


@pytest.fixture(scope="module")
def public(served: Path) -> Iterator[TestClient]:
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


HOSTILE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of this host, where anybody may listen
    {"Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:7861"},
    {"Referer": "http://evil.example/page?http://127.0.0.1:7860/"},
    {"Referer": "http://127.0.0.1:78601/"},
    {"Referer": "about:blank"},
    {"Origin": "http://evil.example", "Referer": "http://127.0.0.1:7860/"},
]
OWN: list[dict[str, str]] = [
    {},
    {"User-Agent": "curl/8.5.0"},
    {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
    {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7860"},
    {"Origin": "http://127.0.0.1:7860"},
    {"Referer": "http://127.0.0.1:7860/?view=labels"},
]


@pytest.mark.parametrize("headers", HOSTILE, ids=str)
def test_another_site_can_neither_read_from_the_api_nor_write(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/v1/gallery"), ("GET", "/v1/nothing"), ("POST", "/v1/labels/undo")):
        response = client.request(method, path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "cross_site"), path
    assert client.request("HEAD", "/v1/gallery", headers=headers).status_code == 403


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_page_and_programs_read_and_write(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/v1/labels/file", headers=headers).status_code == 200
    assert client.post("/v1/labels/undo", headers=headers).status_code == 200


def test_a_link_on_another_site_opens_the_page_and_nothing_else(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Referer": "https://mail.example/"}
    assert client.get("/?view=map", headers=headers).status_code == 200
    for path in ("/v1/images/1/thumbnail", "/v1/labels/file", "/v1/health", "/v1/openapi.json"):
        assert client.get(path, headers=headers).status_code == 403, path
    for headers, status in (({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-origin"}, 200)):
        assert client.get("/gradio/gradio_api/file=/tmp/x.webp", headers=headers).status_code == status
    assert not comes_from_another_site(Headers({"host": "Photos.Example", "origin": "https://photos.EXAMPLE"}))


APP = "https://app.example.org"
FROM_APP = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Referer": f"{APP}/"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def letting(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access(token=TOKEN), origins=check_origins([f"{APP}/"])) as client:
        yield client


def test_a_named_site_asks_with_the_token_and_reads(letting: TestClient) -> None:
    answer = letting.get("/v1/gallery", headers={**FROM_APP, **BEARER})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    assert "Origin" in answer.headers["vary"]
    assert letting.post("/v1/labels/undo", headers={**FROM_APP, **BEARER}).status_code == 200
    refused = letting.get("/v1/gallery", headers=FROM_APP)
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, APP)
    for told in (answer, refused):
        assert "access-control-allow-credentials" not in told.headers
    assert "access-control-allow-origin" not in letting.get("/", headers={**FROM_APP, **BEARER}).headers


def test_the_browser_is_told_what_may_be_sent(letting: TestClient) -> None:
    asked = {**FROM_APP, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    answer = letting.options("/v1/search", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "Authorization" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example.org", f"{APP}:444", f"{APP}.evil.example", "null", ""]
)
def test_no_other_site_gets_in(letting: TestClient, origin: str) -> None:
    headers = {**FROM_APP, "Origin": origin, **BEARER}
    for answer in (letting.get("/v1/gallery", headers=headers), letting.options("/v1/search", headers=headers)):
        assert answer.status_code in (401, 403, 405)
        assert "access-control-allow-origin" not in answer.headers


def test_the_cookie_of_a_visitor_opens_nothing_for_the_named_site(letting: TestClient) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    signed_in = letting.post("/", content=f"token={TOKEN}", headers=form, follow_redirects=False)
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    letting.cookies.clear()
    assert letting.get("/v1/gallery", headers={"Cookie": cookie}).status_code == 200
    assert letting.get("/v1/gallery", headers={**FROM_APP, "Cookie": cookie}).status_code == 401


@pytest.mark.parametrize("text", ["*", "app.example.org", f"{APP}/path", "https://*.example.org", "null", "file://x"])
def test_what_is_no_site_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--cors-origin"):
        check_origins([text])


def test_origins_are_compared_as_browsers_write_them() -> None:
    named = ["HTTPS://App.Example.org:443/", "http://localhost:80", "http://[::1]:5173"]
    assert check_origins(named) == {APP, "http://localhost", "http://[::1]:5173"}
