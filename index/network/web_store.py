"""Files of http and https, with a check of every connection's IP address (SSRF protection).

An address in a list makes this machine send a request from its own network. So every connection, also of a redirect,
goes to an IP address that is checked as the connection is made. The DNS answer cannot change in between, and a name
with even one private address is refused.
"""

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from index.errors import InputError, missing_imports_as_dependency_errors
from index.items import FoundItem
from index.network.public_addresses import REDIRECTS, Address, check_web_address, is_public_web, lead_on, read_address
from index.network.remote_store import NO_PARTS, Content, FetchError, make_stamp
from index.text import printable_path

with missing_imports_as_dependency_errors("fetching from http"):
    import httpcore

# Private networks are allowed by an environment variable, not by a gallery, which may come from elsewhere.
VARIABLE = "RETRIEVAL_FETCH_FROM"
_TIMEOUTS_S = {"connect": 10.0, "read": 20.0, "write": 10.0, "pool": 10.0}
_STEP_S = 60.0
_MOST_REDIRECTS = 5
_HEADERS = {"User-Agent": "retrieval-app", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}
_SIZE_DIGITS = 19  # of what a catalogue can hold
_NO_RIGHTS, _GONE = FetchError.NO_RIGHTS, FetchError.NOT_FOUND
_REASONS = {401: _NO_RIGHTS, 403: _NO_RIGHTS, 404: _GONE, 410: _GONE}
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


class _Deadline:
    """The end of a step of a request, as a server may send single bytes without end: of the head, then of each part."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin the next step."""
        self._until = time.monotonic() + _STEP_S

    def bound(self, timeout: float | None) -> float:
        """Seconds left, at most `timeout`; 0 or less behind the deadline."""
        left = self._until - time.monotonic()
        return left if timeout is None else min(left, timeout)

    def bound_connecting(self, timeout: float | None) -> float:
        """Time limit of a connection; ConnectTimeout after the deadline."""
        left_s = self.bound(timeout)
        if left_s <= 0:
            raise httpcore.ConnectTimeout(f"no connection within {_STEP_S:g} s")
        return left_s


class WebStore:
    """Files of http and https below `root`, or of whole addresses where that is ""; see `RemoteStore`."""

    def __init__(self, root: str = "") -> None:
        self._start = f"{root}/" if root else ""

    def walk(self) -> Iterator[FoundItem]:
        raise FetchError(FetchError.REFUSED, "http and https have no folders; name a file, or a list of addresses")

    def look(self, path: str) -> FoundItem:
        """By a HEAD request; without size and stamp where the server does not support it."""
        with ask(self._start + path, method="HEAD") as (status, headers, _):
            return FoundItem(path, 0, 0) if status in (405, 501) else _describe(path, status, headers)

    @contextmanager
    def open(self, path: str, *, offset: int = 0, size_bytes: int | None = None) -> Iterator[Content]:
        is_part = bool(offset) or size_bytes is not None
        end = "" if size_bytes is None else offset + size_bytes - 1
        asked = {"Range": f"bytes={offset}-{end}"} if is_part else {}
        with ask(self._start + path, asked=asked) as (status, headers, parts):
            found = _describe(path, status, headers)
            if headers.get("content-encoding", "identity") != "identity":
                raise FetchError(FetchError.UNREACHABLE, "its response is compressed, which was not asked for")
            if is_part and status != 206:
                raise FetchError(FetchError.UNREACHABLE, NO_PARTS)
            yield found, parts


@contextmanager
def ask(
    address: str, *, method: str = "GET", asked: Mapping[str, str] | None = None
) -> Iterator[tuple[int, Mapping[str, str], Iterator[bytes]]]:
    """Send a request, following redirects: status, headers in lower case, and body."""
    deadline = _Deadline()
    with ExitStack() as closing:
        with _naming_errors():
            answer = _follow(address, method, {**_HEADERS, **(asked or {})}, closing=closing, deadline=deadline)
        yield answer.status, _read_headers(answer), _take(answer, deadline)


def _follow(
    address: str, method: str, headers: Mapping[str, str], *, closing: ExitStack, deadline: _Deadline
) -> httpcore.Response:
    for _ in range(_MOST_REDIRECTS + 1):
        check_web_address(address)
        parts = urlsplit(address)
        target = urlunsplit(("", "", parts.path or "/", parts.query, ""))  # with what httpcore would leave out
        url = httpcore.URL(scheme=parts.scheme, host=str(parts.hostname), port=parts.port, target=target)
        context = _open_certificates() if parts.scheme == "https" else None
        pool = closing.enter_context(httpcore.ConnectionPool(context, network_backend=_CheckedNetwork(deadline)))
        sent = pool.stream(method, url, headers=[*headers.items()], extensions={"timeout": _TIMEOUTS_S})
        answer = closing.enter_context(sent)
        if answer.status not in REDIRECTS:
            return answer
        location = _read_headers(answer).get("location")
        if not location:
            raise FetchError(FetchError.UNREACHABLE, f"it answers with status {answer.status} without a location")
        address = lead_on(address, location)
        closing.close()
    raise FetchError(FetchError.REFUSED, f"it redirects more than {_MOST_REDIRECTS} times")


def _take(answer: httpcore.Response, deadline: _Deadline) -> Iterator[bytes]:
    deadline.renew()
    with _naming_errors():
        for part in answer.iter_stream():
            yield part
            deadline.renew()


def _read_headers(answer: httpcore.Response) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}


@contextmanager
def _naming_errors() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise FetchError(FetchError.REFUSED, str(error)) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError) as error:
        seen = str(error) or type(error).__name__
        raise FetchError(FetchError.UNREACHABLE, f"it cannot be reached: {seen}", is_transient=True) from error


@cache
def _open_certificates() -> ssl.SSLContext:
    """The system's certificates, loaded once because that is slow."""
    return ssl.create_default_context()


class _LimitedStream(httpcore.NetworkStream):
    """A connection that keeps to the deadline of a request."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left_s = self._deadline.bound(timeout)
        if left_s > 0:
            try:
                return self._stream.read(max_bytes, left_s)
            except httpcore.ReadTimeout:
                if self._deadline.bound(None) > 0:  # the read timeout, not the deadline
                    raise
        raise httpcore.ReadTimeout(f"it sends too slowly: no part was complete after {_STEP_S:g} s")

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = self._deadline.bound_connecting(timeout)
        return _LimitedStream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)


class _CheckedNetwork(httpcore.SyncBackend):
    """Opens TCP connections to allowed addresses only."""

    def __init__(self, deadline: _Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        self._deadline.bound_connecting(timeout)  # before the DNS lookup, which has no timeout
        found = _find_addresses(host, port)
        for address in map(read_address, found):  # one private address is enough
            if address is None or not may_fetch(address, port):
                raise InputError(
                    f"{printable_path(host)}: this host, or its port {port}, is not asked: images are fetched from "
                    "public addresses only, at the usual ports of http and https; name private networks that may be "
                    f"asked in {VARIABLE}, such as 10.0.0.0/8"
                )
        left_s = self._deadline.bound_connecting(timeout)
        connection = super().connect_tcp(found[0], port, left_s, local_address, socket_options)
        return _LimitedStream(connection, self._deadline)


def _find_addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        passes = getattr(error, "errno", None) == socket.EAI_AGAIN
        raise FetchError(FetchError.UNREACHABLE, "unknown host", is_transient=passes) from error
    return [str(address[0]) for *_, address in found]


def _describe(path: str, status: int, headers: Mapping[str, str]) -> FoundItem:
    if status not in (200, 206):
        reason = _REASONS.get(status, FetchError.UNREACHABLE)
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
