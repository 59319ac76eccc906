"""Files of http and https, with a check of every connection's IP address (SSRF protection).

An address in a list makes this machine send a request from its own network. So every connection, also of a redirect,
goes to an IP address that is checked as the connection is made. The DNS answer cannot change in between, and a name
with even one private address is refused.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from index.errors import InputError, MissingDependencyError
from index.items import FoundItem
from index.network.public_addresses import (
    REDIRECTS,
    Address,
    MayConnect,
    check_addresses,
    check_web_address,
    is_public_web,
    lead_on,
)
from index.network.remote_store import NO_RIGHTS, NOT_FOUND, REFUSED, UNREACHABLE, Content, FetchError, make_stamp

if TYPE_CHECKING:
    import httpcore


# Private networks are allowed by an environment variable, not by a gallery, which may come from elsewhere.
VARIABLE = "RETRIEVAL_FETCH_FROM"
_TIMEOUTS_S = {"connect": 10.0, "read": 20.0, "write": 10.0, "pool": 10.0}
_HEADERS = {"User-Agent": "retrieval-app", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}
_SIZE_DIGITS = 19  # of what a catalogue can hold
_PASSING = (408, 425, 429, 500, 502, 503, 504)


def may_fetch(address: Address, port: int) -> bool:
    """Whether an address is public, at a usual port, or in an allowed network, at any port."""
    allowed = _read_networks(os.environ.get(VARIABLE, ""))
    return is_public_web(address, port) or any(address in network for network in allowed)


@lru_cache(maxsize=8)
def _read_networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InputError(f"{VARIABLE}: {error}; expected networks such as 10.0.0.0/8,127.0.0.1/32") from error


@dataclass(frozen=True, slots=True)
class Reach:
    """Limits of requests.

    Attributes:
        may_connect: whether an address may be asked, at a port.
        advice: in the error of an address that may not.
        step_s: seconds for the head of the response, redirects included, and then for each part.
        in_all: whether `step_s` limits the whole response.
    """

    may_connect: MayConnect
    advice: str
    most_redirects: int = 5
    step_s: float = 60.0
    in_all: bool = False


_OF_GALLERIES = Reach(may_fetch, f"name private networks that may be asked in {VARIABLE}, such as 10.0.0.0/8")


class WebStore:
    """Files of http and https below `root`, or of whole addresses where that is ""; see `RemoteStore`."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        import_httpcore()

    def walk(self) -> Iterator[FoundItem]:
        raise FetchError(REFUSED, "http and https have no folders; name a file, or a list of addresses")

    def look(self, path: str) -> FoundItem:
        """By a HEAD request; without size and stamp where the server does not support it."""
        with ask(self._address(path), method="HEAD") as (status, headers, _):
            if status in (405, 501):
                return FoundItem(path, 0, 0)
            return _describe(path, status, headers)

    @contextmanager
    def open(self, path: str, *, offset: int = 0, size_bytes: int | None = None) -> Iterator[Content]:
        is_part = bool(offset) or size_bytes is not None
        end = "" if size_bytes is None else offset + size_bytes - 1
        asked = {"Range": f"bytes={offset}-{end}"} if is_part else {}
        with ask(self._address(path), method="GET", asked=asked) as (status, headers, parts):
            found = _describe(path, status, headers)
            if headers.get("content-encoding", "identity") != "identity":
                raise FetchError(UNREACHABLE, "its response is compressed, which was not asked for")
            yield found, _take_part(parts, offset, size_bytes) if is_part and status == 200 else parts

    def _address(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path


def import_httpcore() -> Any:
    try:
        import httpcore
    except ImportError as error:
        raise MissingDependencyError(package="httpcore", extra="remote", purpose="fetching from http") from error
    return httpcore


_Answer = tuple[int, Mapping[str, str], Iterator[bytes]]


@contextmanager
def ask(
    address: str, *, method: str = "GET", asked: Mapping[str, str] | None = None, reach: Reach | None = None
) -> Iterator[_Answer]:
    """Send a request, following redirects: status, headers in lower case, and body."""
    patience = _Patience(reach or _OF_GALLERIES)
    with ExitStack() as closing:
        with _naming_errors():
            headers = {**_HEADERS, **(asked or {})}
            answer = _follow(address, method=method, headers=headers, closing=closing, patience=patience)
        yield answer.status, _read_headers(answer), _take(answer, patience)


class _Patience:
    """The deadline of a response or its next part, against servers that send a byte now and then for ever."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self._until = reach, time.monotonic() + reach.step_s

    def renew(self) -> None:
        """Set the deadline of the next part."""
        if not self.reach.in_all:
            self._until = time.monotonic() + self.reach.step_s

    def bound(self, timeout: float | None) -> float:
        """Seconds left, at most `timeout`; 0 or less behind the deadline."""
        left = self._until - time.monotonic()
        return left if timeout is None else min(left, timeout)


def _follow(
    address: str, *, method: str, headers: Mapping[str, str], closing: ExitStack, patience: _Patience
) -> httpcore.Response:
    now = address
    most = patience.reach.most_redirects
    for _ in range(most + 1):
        check_web_address(now)
        answer = closing.enter_context(_connect(now, method=method, headers=headers, patience=patience))
        if answer.status not in REDIRECTS:
            return answer
        location = _read_headers(answer).get("location")
        if not location:
            raise FetchError(UNREACHABLE, f"it answers with status {answer.status} without a location")
        now = lead_on(now, location)
        closing.close()
    raise FetchError(REFUSED, f"it redirects more than {most} times")


def _take(answer: httpcore.Response, patience: _Patience) -> Iterator[bytes]:
    patience.renew()
    with _naming_errors():
        for part in answer.iter_stream():
            yield part
            patience.renew()


def _read_headers(answer: httpcore.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}


@contextmanager
def _naming_errors() -> Iterator[None]:
    httpcore = import_httpcore()
    try:
        yield
    except InputError as error:
        raise FetchError(REFUSED, str(error)) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError) as error:
        seen = str(error) or type(error).__name__
        raise FetchError(UNREACHABLE, f"it cannot be reached: {seen}", is_transient=True) from error


@contextmanager
def _connect(
    address: str, *, method: str, headers: Mapping[str, str], patience: _Patience
) -> Iterator[httpcore.Response]:
    httpcore = import_httpcore()
    parts = urlsplit(address)
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))  # with what httpcore would leave out
    url = httpcore.URL(scheme=parts.scheme, host=str(parts.hostname), port=parts.port, target=target)
    context = open_certificates() if parts.scheme == "https" else None
    with (
        httpcore.ConnectionPool(ssl_context=context, network_backend=_checked_network()(patience)) as pool,
        pool.stream(method, url, headers=headers, extensions={"timeout": _TIMEOUTS_S}) as answer,
    ):
        yield answer


@cache
def open_certificates() -> ssl.SSLContext:
    """The system's certificates, loaded once because that is slow."""
    return ssl.create_default_context()


@cache
def _checked_network() -> Any:
    """The class that opens TCP connections to allowed addresses only, with the deadline of a `_Patience`."""
    httpcore = import_httpcore()

    class PatientStream(httpcore.NetworkStream):  # type: ignore[misc,name-defined]
        def __init__(self, stream: Any, patience: _Patience) -> None:
            self._stream, self._patience = stream, patience

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            left_s = self._patience.bound(timeout)
            if left_s > 0:
                try:
                    found: bytes = self._stream.read(max_bytes, left_s)
                    return found
                except httpcore.ReadTimeout:
                    if self._patience.bound(None) > 0:  # the read timeout, not the deadline
                        raise
            seconds = self._patience.reach.step_s
            raise httpcore.ReadTimeout(f"it sends too slowly: no part was complete after {seconds:g} s")

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            self._stream.write(buffer, timeout)

        def close(self) -> None:
            self._stream.close()

        def start_tls(
            self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
        ) -> PatientStream:
            left_s = _bound_connecting(self._patience, timeout)
            return PatientStream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._patience)

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    class CheckedNetwork(httpcore.SyncBackend):  # type: ignore[misc,name-defined]
        def __init__(self, patience: _Patience) -> None:
            self._patience = patience

        def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> Any:
            _bound_connecting(self._patience, timeout)  # before the DNS lookup, which has no timeout
            found, reach = _find_addresses(host, port), self._patience.reach
            check_addresses(host, port, found=found, may_connect=reach.may_connect, advice=reach.advice)
            left_s = _bound_connecting(self._patience, timeout)
            stream = super().connect_tcp(found[0], port, left_s, local_address, socket_options)
            return PatientStream(stream, self._patience)

    return CheckedNetwork


def _bound_connecting(patience: _Patience, timeout: float | None) -> float:
    left_s = patience.bound(timeout)
    if left_s <= 0:
        raise import_httpcore().ConnectTimeout(f"no connection within {patience.reach.step_s:g} s")
    return left_s


def _find_addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        passes = getattr(error, "errno", None) == socket.EAI_AGAIN
        raise FetchError(UNREACHABLE, "unknown host", is_transient=passes) from error
    return [str(address[0]) for *_, address in found]


def _describe(path: str, status: int, headers: Mapping[str, str]) -> FoundItem:
    if status not in (200, 206):
        reason = {401: NO_RIGHTS, 403: NO_RIGHTS, 404: NOT_FOUND, 410: NOT_FOUND}.get(status, UNREACHABLE)
        wait_s = _read_wait(headers.get("retry-after", ""))
        seen = f"it answers with status {status}"
        raise FetchError(reason, seen, is_transient=status in _PASSING, wait_s=wait_s)
    whole = headers.get("content-range", "").rpartition("/")[2] if status == 206 else headers.get("content-length")
    size = int(whole) if whole and whole.isdecimal() and len(whole) < _SIZE_DIGITS else 0
    tag = headers.get("etag", "").removeprefix("W/") or None
    return FoundItem(path, size, make_stamp(tag, _read_time(headers.get("last-modified", ""))))


def _read_time(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _read_wait(text: str) -> float:
    """Seconds of a Retry-After header, which may be a date; 0 without one."""
    if text.strip().isdecimal() and len(text) < 10:
        return float(text)
    until = _read_time(text)
    return 0.0 if until is None else max(0.0, (until - datetime.now(UTC)).total_seconds())


def _take_part(parts: Iterator[bytes], offset: int, size_bytes: int | None) -> Iterator[bytes]:
    """A range of a whole body, of a server without range requests."""
    end, at = None if size_bytes is None else offset + size_bytes, 0
    for part in parts:
        start, at = at, at + len(part)
        if wanted := part[max(0, offset - start) : None if end is None else max(0, end - start)]:
            yield wanted
        if end is not None and at >= end:
            return
