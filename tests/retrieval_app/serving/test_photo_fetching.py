"""Photos of pasted addresses: fetched from servers of the test's own, and never from where they must not be."""

import asyncio
import ipaddress
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import InputError, RetrievalError
from index.network.public_addresses import MAX_ADDRESS_CHARACTERS, is_public
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.photo_fetching import PhotoFetcher
from retrieval_app.serving.serving_config import ServingConfig
from tests.answering_server import PathAnswer, answer_paths

SMALL = ServingConfig(max_upload_bytes=9, fetches_at_once=1)


def fetch(address: str, *, allowed: bool = True, max_bytes: int = 1000, seconds: float = 20) -> tuple[bytes, str]:
    limits = ServingConfig(max_upload_bytes=max_bytes, fetch_s=seconds)
    fetcher = PhotoFetcher(limits, **({"may_connect": lambda *_: True} if allowed else {}))
    photo = asyncio.run(fetcher.fetch(address))
    return photo.data, photo.name


def test_the_bytes_of_an_address_are_fetched_under_the_name_that_it_ends_with() -> None:
    with answer_paths(lambda path: (200, {"Content-Type": "image/jpeg"}, path.encode())) as port:
        assert fetch(f"http://127.0.0.1:{port}/a/caf%C3%A9.jpg?size=2") == (b"/a/caf%C3%A9.jpg?size=2", "café.jpg")
        assert fetch(f"http://localhost:{port}/")[1] == "photo"


def test_an_address_may_lead_on_a_few_times() -> None:
    def answer(path: str) -> PathAnswer:
        step = int(path.strip("/"))
        return (302, {"Location": f"/{step - 1}"}, b"") if step else (200, {}, b"photo")

    with answer_paths(answer) as port:
        assert fetch(f"http://127.0.0.1:{port}/3")[0] == b"photo"
        with pytest.raises(InputError, match="redirects more than 3 times"):
            fetch(f"http://127.0.0.1:{port}/4")


def test_what_is_not_public_is_never_asked() -> None:
    hosts = (
        *("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *("2130706433", "0x7f000001", "127.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254"),
        *("[fe80::1]", "[fd00::1]", "100.64.0.1", "[fec0::2]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]"),
        *("[5f00::1]", "[3fff::1]", "168.63.129.16", "224.0.0.1", "255.255.255.255", "[64:ff9b::7f00:1]"),
        *("[2002:7f00:1::]", "192.0.2.1"),
    )
    for host in hosts:
        with pytest.raises(InputError, match=r"public addresses only|unknown host"):
            fetch(f"http://{host}/photo.jpg", allowed=False)
    with pytest.raises(InputError, match="its port 22, is not asked"):
        fetch("http://8.8.8.8:22/", allowed=False)


def test_where_an_address_leads_is_checked_like_itself() -> None:
    asked: list[str] = []

    def answer(path: str) -> PathAnswer:
        asked.append(path)
        return 302, {"Location": f"http://127.0.0.2:{port}/secret"}, b""

    with answer_paths(answer) as port:
        fetcher = PhotoFetcher(SMALL, may_connect=lambda address, _: str(address) == "127.0.0.1")
        with pytest.raises(InputError, match=r"127\.0\.0\.2: this host"):
            asyncio.run(fetcher.fetch(f"http://127.0.0.1:{port}/open"))
    assert asked == ["/open"]


def test_a_host_of_which_one_address_is_private_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.network.web_store._find_addresses", lambda *_: ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(InputError, match="public addresses only"):
        fetch("http://rebound.example/photo.jpg", allowed=False)


def test_what_is_no_address_of_a_picture_is_refused() -> None:
    addresses = (
        *("", "photo.jpg", "/etc/passwd", "file:///etc/passwd", "ftp://example.org/a.jpg", "http://"),
        *("http://:80/", "https://exa mple.org/", "http://example.org/\r\nHost: other", "http://[::1/"),
        *("gopher://example.org/", "http://example.org:0/", "http://example.org:99999/"),
    )
    for address in addresses:
        with pytest.raises(InputError, match="expected the address of an image"):
            fetch(address)
    with pytest.raises(InputError) as caught:
        fetch("http://me:secret@example.org/")
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="at most 2048"):
        fetch("http://example.org/" + "a" * MAX_ADDRESS_CHARACTERS)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, {}, b""), "answers with status 404"),
        ((200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>"), "it is a page .* copy the address"),
        ((200, {"Content-Encoding": "gzip"}, b"x"), "packed"),
        ((200, {}, b"x" * 1001), "more than the 0 MB"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "expected the address of an image"),
    ],
)
def test_what_gives_no_picture_of_a_sensible_size_is_refused(answer: PathAnswer, problem: str) -> None:
    with answer_paths(lambda _: answer) as port, pytest.raises(InputError, match=problem):
        fetch(f"http://127.0.0.1:{port}/photo.jpg")


def test_few_are_fetched_at_once_and_others_are_told_to_wait() -> None:
    release = threading.Event()

    def answer(_: str) -> PathAnswer:
        release.wait(10)
        return 200, {}, b"photo"

    async def ask_twice(port: int) -> bytes:
        fetcher = PhotoFetcher(SMALL, may_connect=lambda *_: True)
        first = asyncio.create_task(fetcher.fetch(f"http://127.0.0.1:{port}/"))
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await fetcher.fetch(f"http://127.0.0.1:{port}/")
        release.set()
        return (await first).data

    with answer_paths(answer) as port:
        assert asyncio.run(ask_twice(port)) == b"photo"


def test_a_server_that_dawdles_is_left_and_one_that_is_gone_is_told() -> None:
    release = threading.Event()

    def dawdle(_: str) -> PathAnswer:
        release.wait(10)
        return 200, {}, b""

    with answer_paths(dawdle) as port:
        with pytest.raises(InputError, match="did not answer within"):
            fetch(f"http://127.0.0.1:{port}/", seconds=0.1)
        release.set()
    with pytest.raises(InputError, match="cannot be reached"):
        fetch(f"http://127.0.0.1:{port}/")


def test_a_name_server_that_never_answers_keeps_no_other_fetch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    find, release = socket.getaddrinfo, threading.Event()

    def hang(host: str, *args: Any, **options: Any) -> Any:
        if host == "hangs.example":
            release.wait(20)
        return find(host, *args, **options)

    async def ask(port: int) -> bytes:
        fetcher = PhotoFetcher(replace(SMALL, fetch_s=0.2), may_connect=lambda *_: True)
        hanging = asyncio.create_task(fetcher.fetch("http://hangs.example/"))
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await fetcher.fetch(f"http://127.0.0.1:{port}/")
        with pytest.raises(InputError, match="did not answer within"):
            await hanging
        return (await fetcher.fetch(f"http://127.0.0.1:{port}/")).data

    monkeypatch.setattr("index.network.web_store.socket.getaddrinfo", hang)
    with answer_paths(lambda _: (200, {}, b"photo")) as port:
        assert asyncio.run(ask(port)) == b"photo"
        release.set()


@given(st.ip_addresses(v=4).filter(lambda address: not address.is_global))
def test_no_private_address_becomes_public_as_one_of_the_newer_kind(address: ipaddress.IPv4Address) -> None:
    assert is_public(ipaddress.ip_address("8.8.8.8"))
    assert not is_public(address)
    number = int(address)
    for network in ("64:ff9b::", "2002::", "::", "::ffff:0:0:0", "fec0::"):
        shift = 80 if network == "2002::" else 0
        assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) + (number << shift)))


@given(st.text(max_size=60))
def test_whatever_is_pasted_is_refused_in_a_sentence_or_asks_nobody(text: str) -> None:
    fetcher = PhotoFetcher(SMALL, may_connect=lambda *_: False)
    with pytest.raises(RetrievalError):
        asyncio.run(fetcher.fetch(text))


def test_an_address_leads_on_in_any_writing_or_is_refused() -> None:
    asked: list[str] = []

    def answer(path: str) -> PathAnswer:
        asked.append(path)
        if path == "/broken":
            return 302, {"Location": "http://[::1"}, b""
        return (302, {"Location": "/caf\u00e9;v=2?q=1"}, b"") if path == "/on" else (200, {}, b"photo")

    with answer_paths(answer) as port:
        assert fetch(f"http://127.0.0.1:{port}/on")[0] == b"photo"
        assert asked[-1] in ("/caf%C3%A9;v=2?q=1", "/caf%E9;v=2?q=1")
        with pytest.raises(InputError, match="leads on to an invalid address"):
            fetch(f"http://127.0.0.1:{port}/broken")
