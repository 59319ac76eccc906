"""As much of HTTP/1.1 as the load generator needs, as pure functions on bytes, and one blocking exchange."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after:[ \t]*(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_WITHOUT_BODY = (204, 304)
_BOUNDARY = b"----aBoundaryThatNoPhotoHolds7d3f"
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


def parse_reply(received: bytes | bytearray) -> Reply | None:
    """The answer that some bytes are; None where it is not whole yet.

    The bytes may hold one answer, since its client asks again only after it.

    Raises:
        ValueError: no HTTP, or an answer that neither tells its length nor is chunked.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, body = bytes(received[: end + 2]), received[end + 4 :]
    if not head.startswith(b"HTTP/1."):
        raise ValueError(f"no HTTP answer: {head[:60]!r}")
    status, retry_after = int(head[9:12]), _RETRY_AFTER.search(head)
    if status in _WITHOUT_BODY:
        whole: bytes | None = b""
    elif length := _LENGTH.search(head):
        whole = bytes(body) if len(body) >= int(length[1]) else None
    elif _CHUNKED.search(head):
        whole = join_chunks(bytes(body))
    else:
        raise ValueError(f"an answer without its length: {head!r}")
    if whole is None:
        return None
    return Reply(status, whole, int(retry_after[1]) if retry_after else None, bool(_CLOSE.search(head)))


def join_chunks(body: bytes) -> bytes | None:
    """The content of a chunked body; None where its last chunk has not come yet."""
    parts: list[bytes] = []
    place = 0
    while (end := body.find(b"\r\n", place)) >= 0:
        size = int(body[place:end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts) if body.find(b"\r\n", end + 2) >= 0 else None
        parts.append(body[end + 2 : end + 2 + size])
        place = end + 2 + size + 2
    return None


def build_get(host: str, path: str) -> bytes:
    """A GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def build_post(host: str, path: str, body: bytes, *, content_type: str) -> bytes:
    """A POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def build_form(host: str, path: str, data: bytes, *, field: str) -> bytes:
    """A POST request with one JPEG as a form field, as browsers and client libraries send files."""
    disposition = f'Content-Disposition: form-data; name="{field}"; filename="photo.jpg"\r\n'
    body = b"".join([
        b"--" + _BOUNDARY + b"\r\n", disposition.encode(), b"Content-Type: image/jpeg\r\n\r\n", data,
        b"\r\n--" + _BOUNDARY + b"--\r\n",
    ])  # fmt: skip
    return build_post(host, path, body, content_type=f"multipart/form-data; boundary={_BOUNDARY.decode()}")


def build_json(host: str, path: str, document: object) -> bytes:
    """A POST request with a JSON document."""
    return build_post(host, path, json.dumps(document).encode(), content_type="application/json")


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
        request = next(conversation)
        while True:
            connection.sendall(request)
            received = bytearray()
            while (reply := parse_reply(received)) is None:
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError(
                        f"{url}: the server ended the connection before its answer was whole"
                    )
                received += data
            try:
                request = conversation.send(reply)
            except StopIteration:
                return reply
