import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from index.errors import InputError
from retrieval_app.api.security.access import Access, choose_access
from retrieval_app.api.security.addresses import (
    HostNames,
    check_host,
    check_proxies,
    check_root_path,
    choose_hosts,
    comes_from_another_site,
    is_forwarded,
    is_loopback,
    name_client,
    read_host,
)
from retrieval_app.api.security.middleware import RootPath
from retrieval_app.server.options import ServeOptions
from tests.retrieval_app.api.conftest import serve


def _admits(hosts: HostNames, *given: str, local: str = "127.0.0.1") -> bool:
    scope: dict[str, Any] = {"type": "http", "server": (local, 7860)}
    return hosts.admit(scope, Headers(raw=[(b"host", text.encode()) for text in given]))


def test_names_and_addresses_are_compared_in_one_form() -> None:
    assert read_host("photos.Example.org.") == "photos.example.org"
    assert (read_host("0:0:0:0:0:0:0:1"), read_host("::ffff:192.0.2.1")) == ("::1", "192.0.2.1")
    for text in ("", "..", "a..b", "-a", "a b", "a/b", "a@b", "é.example", "a\n"):
        assert read_host(text) is None


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:80", "localhost.", "localhost.:7860", "127.0.0.1:1", "[::1]", "[::1]:7860"),
        *("[0:0:0:0:0:0:0:1]:80", "[::ffff:127.0.0.1]:80"),
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
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1]evil", "127.0.0.1:x"),
        *("0", "localhost:80:80", "localhost:123456", "::1", "[localhost]", "localhost@evil.example"),
        *("localhost/x", "127.1", "192.0.2.7"),
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


def test_which_addresses_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.9", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "box")))


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
    assert not comes_from_another_site(Headers({"host": "Photos.Example", "origin": "https://photos.EXAMPLE"}))


@pytest.mark.parametrize("name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-anything", "x-real-ip"])
def test_what_a_proxy_adds_is_seen(name: str) -> None:
    pairs = [(b"host", b"127.0.0.1"), (name.encode(), b"")]
    assert is_forwarded(Headers(raw=pairs))


def test_what_browsers_and_programs_send_is_no_forwarding() -> None:
    names = ("host", "user-agent", "x-request-id", "x-requested-with", "referer", "forwarded-by-me", "viable")
    assert not is_forwarded(Headers(dict.fromkeys(names, "x")))


async def _tell(scope: Scope, receive: Receive, send: Send) -> None:
    headers = Headers(scope=scope)
    seen = {
        "path": scope["path"],
        "client": name_client(scope),
        "scheme": scope["scheme"],
        "forwarded": is_forwarded(headers),
        "url": str(Request(scope).url.path),
    }
    await JSONResponse(seen)(scope, receive, send)


def _ask(path: str, *, peer: str, root_path: str = "", **headers: str) -> Any:
    """What an application sees behind the middleware, with proxies on this machine and in a network."""
    app = ProxyHeadersMiddleware(
        RootPath(_tell, root_path=root_path), trusted_hosts=check_proxies(["127.0.0.1", "10.0.0.0/8"])
    )
    client = TestClient(app, client=(peer, 1), follow_redirects=False)  # type: ignore[arg-type]
    return client.get(path, headers=headers)


@pytest.mark.parametrize(
    ("peer", "told", "name"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # who is no proxy is not believed
        ("127.0.0.1", "203.0.113.1, 198.51.100.1", "198.51.100.1"),  # before the last anybody may have sent
        ("127.0.0.1", "6.6.6.6, 192.0.2.1, 10.1.1.1", "192.0.2.1"),
        ("10.2.2.2", "192.0.2.1:4711", "192.0.2.1"),
        ("127.0.0.1", "nonsense", "unknown"),
        ("127.0.0.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", None, "192.0.2.1"),
        ("", None, "unknown"),
    ],
)
def test_wrong_tries_are_counted_by_a_trustworthy_address(peer: str, told: str | None, name: str) -> None:
    seen = _ask("/v1/x", peer=peer, **({} if told is None else {"X-Forwarded-For": told})).json()
    assert (seen["client"], seen["forwarded"]) == (name, told is not None)


@pytest.mark.parametrize(("peer", "scheme"), [("127.0.0.1", "https"), ("10.0.0.1", "https"), ("192.0.2.1", "http")])
def test_only_a_proxy_that_is_known_is_believed_to_speak_tls(peer: str, scheme: str) -> None:
    assert _ask("/v1/x", peer=peer, **{"X-Forwarded-Proto": "https"}).json()["scheme"] == scheme


def test_behind_a_named_proxy_nobody_is_of_this_machine(small_gallery: Path) -> None:
    options = {"trusted_proxies": ("127.0.0.1",), "allowed_hosts": ("photos.example.org",)}
    assert choose_access(ServeOptions.of(small_gallery)).loopback
    access = choose_access(ServeOptions.of(small_gallery, **options))
    assert not access.loopback
    assert "review" not in access.describe_stranger(Headers({})).rights  # though it adds no header


@pytest.mark.parametrize(
    ("asked", "path"),
    [("/photos/", "/"), ("/photos/v1/x", "/v1/x"), ("/v1/x", "/v1/x"), ("/photosbooth", "/photosbooth")],
)
def test_a_path_is_the_same_whether_the_proxy_takes_the_root_away_or_not(asked: str, path: str) -> None:
    assert _ask(asked, peer="127.0.0.1", root_path="/photos").json()["path"] == path


def test_the_root_without_its_slash_leads_to_the_page_with_its_search() -> None:
    answer = _ask("/photos?view=map", peer="127.0.0.1", root_path="/photos")
    assert (answer.status_code, answer.headers["location"]) == (307, "/photos/?view=map")
    assert "content-security-policy" in answer.headers


REFUSED: list[tuple[str, Callable[[str], object], list[str]]] = [
    ("--allowed-host", check_host, ["", "*", "https://photos.example.org", "photos.example.org:443", "a b", "*.org"]),
    (
        "--trusted-proxy",
        lambda text: check_proxies([text]),
        ["proxy", "10.0.0.1/8", "10.0.0.0/33", "", "*", "0.0.0.0/0", "::/0"],
    ),
    ("--root-path", check_root_path, ["photos", "//evil.example", "/a/../b", "/a b", "/v1", "/é", "/a//b"]),
]


@pytest.mark.parametrize(("option", "check", "texts"), REFUSED, ids=[option for option, _, _ in REFUSED])
def test_an_option_that_is_none_is_refused(option: str, check: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(InputError, match=option):
            check(text)
