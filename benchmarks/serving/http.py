"""HTTP/1.1 of the load generator: requests as bytes, answers parsed by httptools, and one blocking exchange."""

from __future__ import annotations

import socket
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

_WITHOUT_BODY = (204, 304)
_BOUNDARY = "----aBoundaryThatNoPhotoHolds7d3f"
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `retry_after` is in seconds, None without one; `closes` where the server ends the connection."""

    status: int
    body: bytes
    retry_after: int | None = None
    closes: bool = False


# Requests as bytes, answered by replies, one after another; at the end whether the answer was what was asked for.
Conversation = Generator[bytes, Reply, bool]


class ReplyReader:
    """Puts the answers of one connection together, whose client asks again only after each."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._reply: Reply | None = None

    def feed(self, data: bytes) -> Reply | None:
        """The answer that ends with these bytes; None where it is not whole yet.

        Raises:
            ValueError: no HTTP, or an answer that neither tells its length nor is chunked.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ValueError(f"no HTTP answer, or one without its length: {data[:60]!r}") from error
        reply, self._reply = self._reply, None
        return reply

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, bytearray()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if not has_length and self._parser.get_status_code() not in _WITHOUT_BODY:
            raise ValueError("its length is not told")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        waits = self._headers.get(b"retry-after")
        status, wait = self._parser.get_status_code(), None if waits is None else int(waits)
        self._reply = Reply(status, bytes(self._body), wait, closes=not self._parser.should_keep_alive())


def build_get(host: str, path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def build_post(host: str, path: str, body: bytes, *, content_type: str = "application/json") -> bytes:
    """A POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def build_form(host: str, path: str, data: bytes, *, field: str) -> bytes:
    """A POST request with one JPEG as a form field, as browsers and client libraries send files."""
    disposition = f'Content-Disposition: form-data; name="{field}"; filename="photo.jpg"\r\n'
    head = f"--{_BOUNDARY}\r\n{disposition}Content-Type: image/jpeg\r\n\r\n".encode()
    body = head + data + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return build_post(host, path, body, content_type=f"multipart/form-data; boundary={_BOUNDARY}")


def find_address(url: str) -> tuple[str, int]:
    """Host and port of an http URL.

    Raises:
        ValueError: it has none.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"{url!r}: expected http://HOST:PORT")
    return parts.hostname, parts.port


def converse(url: str, conversation: Conversation, *, timeout: float = 60) -> Reply:
    """Lead one conversation on a connection of its own; its last reply.

    Raises:
        OSError: the server cannot be reached, or ended the connection.
        ValueError: the answer is no HTTP.
    """
    with socket.create_connection(find_address(url), timeout=timeout) as connection:
        request, reader = next(conversation), ReplyReader()
        while True:
            connection.sendall(request)
            reply = None
            while reply is None:
                if not (data := connection.recv(_READ_BYTES)):
                    raise ConnectionResetError(f"{url}: the server ended the connection before its answer was whole")
                reply = reader.feed(data)
            try:
                request = conversation.send(reply)
            except StopIteration:
                return reply
