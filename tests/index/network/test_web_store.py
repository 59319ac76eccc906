"""A web server that keeps to HTTP and means no good: it is waited for, but not for ever."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import httpcore
import pytest

from index.network import web_store
from index.network.remote_store import FetchError
from index.network.web_store import VARIABLE, WebStore

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
