"""Web servers that mean no good are not waited for, and addresses that lead to private networks are not asked."""

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.network import web_store
from index.network.public_addresses import MAX_ADDRESS_CHARACTERS, is_public
from index.network.remote_store import FetchError
from index.network.web_store import VARIABLE, WebStore
from tests.answering_server import PathAnswer, answer_paths

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BIT_S = 0.1


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "127.0.0.0/8")
    monkeypatch.setattr(web_store, "_STEP_S", 10 * BIT_S)


@contextmanager
def sending(parts: Sequence[bytes]) -> Iterator[str]:
    """The address of a server that answers the first request by these parts, one after the other with a pause."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def send() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # who gave up has left
                connection.recv(65536)
                for part in parts:
                    connection.sendall(part)
                    if ended.wait(BIT_S):
                        return

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/a.jpg"
        finally:
            ended.set()
            thread.join()


def fetch(address: str) -> bytes:
    with WebStore().open(address) as (_, parts):
        return b"".join(parts)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Long: ", HEAD + b"3\r\nabc\r\n"], ids=["head", "part"])
def test_what_comes_in_bits_is_not_waited_for_to_its_end(start: bytes) -> None:
    bits = [start, *[b"0"] * 100]
    with sending(bits) as address, pytest.raises(FetchError, match="sends too slowly") as caught:
        fetch(address)
    assert caught.value.is_transient


def test_a_body_may_take_as_long_as_it_goes_on() -> None:
    with sending([HEAD, *[b"1\r\nx\r\n"] * 15, b"0\r\n\r\n"]) as address:
        assert fetch(address) == b"x" * 15


def test_a_redirect_to_nowhere_is_told_as_one() -> None:
    with sending([b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"]) as address:  # noqa: SIM117
        with pytest.raises(FetchError, match="status 302 without a location"):
            fetch(address)


def test_looking_a_name_up_and_connecting_have_the_same_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []

    def look_up(*_: object) -> list[str]:
        time.sleep(4 * BIT_S)
        return ["127.0.0.1"]

    def connect(_: object, host: str, port: int, timeout: float | None = None, *others: object) -> None:
        seen.append(timeout)
        raise httpcore.ConnectTimeout

    monkeypatch.setattr(web_store, "_find_addresses", look_up)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    with pytest.raises(FetchError, match="cannot be reached"):
        fetch("http://slow.example/a.jpg")
    [timeout] = seen
    assert 0 < timeout < 7 * BIT_S


def test_no_name_is_looked_up_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_store, "_STEP_S", 0)
    monkeypatch.setattr(web_store, "_find_addresses", lambda *_: pytest.fail("it was looked up"))
    with pytest.raises(FetchError, match="cannot be reached"):
        fetch("http://slow.example/a.jpg")


def test_an_address_may_lead_on_a_few_times_in_any_writing() -> None:
    asked: list[str] = []

    def answer(path: str) -> PathAnswer:
        asked.append(path)
        if path in ("/on", "/broken"):
            return 302, {"Location": "/caf\u00e9;v=2?q=1" if path == "/on" else "http://[::1"}, b""
        step = int(path.strip("/")) if path.strip("/").isdigit() else 0
        return (302, {"Location": f"/{step - 1}"}, b"") if step else (200, {}, b"photo")

    with answer_paths(answer) as port:
        assert fetch(f"http://127.0.0.1:{port}/5") == fetch(f"http://127.0.0.1:{port}/on") == b"photo"
        assert asked[-1] in ("/caf%C3%A9;v=2?q=1", "/caf%E9;v=2?q=1")
        for path, problem in (("6", "redirects more than 5 times"), ("broken", "leads on to an invalid address")):
            with pytest.raises(FetchError, match=problem):
                fetch(f"http://127.0.0.1:{port}/{path}")


def test_what_is_not_public_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    hosts = (
        *("127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *("2130706433", "0x7f000001", "127.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254"),
        *("[fe80::1]", "[fd00::1]", "100.64.0.1", "[fec0::2]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]"),
        *("[5f00::1]", "[3fff::1]", "168.63.129.16", "224.0.0.1", "255.255.255.255", "[64:ff9b::7f00:1]"),
        *("[2002:7f00:1::]", "192.0.2.1"),
    )
    for host in hosts:
        with pytest.raises(FetchError, match=r"public addresses only|unknown host"):
            fetch(f"http://{host}/photo.jpg")
    with pytest.raises(FetchError, match="its port 22, is not asked"):
        fetch("http://8.8.8.8:22/")


def test_what_is_no_address_of_a_picture_is_refused() -> None:
    addresses = (
        *("", "photo.jpg", "/etc/passwd", "file:///etc/passwd", "ftp://example.org/a.jpg", "http://"),
        *("http://:80/", "https://exa mple.org/", "http://example.org/\r\nHost: other", "http://[::1/"),
        *("gopher://example.org/", "http://example.org:0/", "http://example.org:99999/"),
    )
    for address in addresses:
        with pytest.raises(FetchError, match="expected the address of an image"):
            fetch(address)
    with pytest.raises(FetchError) as caught:
        fetch("http://me:secret@example.org/")
    assert "secret" not in str(caught.value)
    with pytest.raises(FetchError, match="at most 2048"):
        fetch("http://example.org/" + "a" * MAX_ADDRESS_CHARACTERS)


@given(st.ip_addresses(v=4).filter(lambda address: not address.is_global))
def test_no_private_address_becomes_public_as_one_of_the_newer_kind(address: ipaddress.IPv4Address) -> None:
    assert is_public(ipaddress.ip_address("8.8.8.8"))
    assert not is_public(address)
    number = int(address)
    for network in ("64:ff9b::", "2002::", "::", "::ffff:0:0:0", "fec0::"):
        shift = 80 if network == "2002::" else 0
        assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) + (number << shift)))
