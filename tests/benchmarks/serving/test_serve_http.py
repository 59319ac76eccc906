"""The little HTTP of the load generator."""

from __future__ import annotations

from email import message_from_bytes

import pytest

from benchmarks.serving.serve_http import Reply, ReplyReader, build_form, build_post, find_address

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def read_byte_by_byte(whole: bytes) -> list[Reply | None]:
    reader = ReplyReader()
    return [reader.feed(whole[at : at + 1]) for at in range(len(whole))]


def test_an_answer_is_none_until_its_last_byte_is_there() -> None:
    whole = HEAD + b"content-length: 5\r\n\r\nhello"
    *parts, reply = read_byte_by_byte(whole)
    assert set(parts) == {None}
    assert reply == ReplyReader().feed(whole) == Reply(200, b"hello")


def test_a_chunked_answer_is_none_until_its_last_chunk_is_there() -> None:
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\n0\r\n\r\na\r\nb;x=y\r\nhello world\r\n0\r\n\r\n"
    *parts, reply = read_byte_by_byte(whole)
    assert set(parts) == {None}
    assert reply == ReplyReader().feed(whole) == Reply(200, b"0\r\n\r\nahello world")


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_never_have_a_body_need_no_length(status: int) -> None:
    assert ReplyReader().feed(f"HTTP/1.1 {status} x\r\n\r\n".encode()) == Reply(status, b"")


def test_a_refusal_tells_how_long_to_wait_and_whether_the_connection_ends() -> None:
    head = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nConnection: close\r\ncontent-length: 0\r\n\r\n"
    assert ReplyReader().feed(head) == Reply(503, b"", retry_after=2, closes=True)


@pytest.mark.parametrize(
    ("received", "message"), [(b"SSH-2.0\r\n\r\n", "no HTTP answer"), (HEAD + b"\r\n", "without its length")]
)
def test_what_cannot_be_read_is_refused(received: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplyReader().feed(received)


def test_a_form_holds_the_file_as_it_is() -> None:
    head, _, body = build_form("host:1", "/upload", b"\xff\xd8\r\n\x00", field="file").partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:2] == [b"POST /upload HTTP/1.1", b"Host: host:1"]
    assert f"Content-Length: {len(body)}".encode() in lines
    parsed = message_from_bytes(b"\r\n".join([*lines[2:], b"", body]))
    (part,) = parsed.get_payload()
    assert part.get_payload(decode=True) == b"\xff\xd8\r\n\x00"
    assert (part.get_param("name", header="content-disposition"), part.get_filename()) == ("file", "photo.jpg")


def test_a_body_is_sent_with_its_length() -> None:
    assert build_post("host:1", "/x", b'{"k": 3}').endswith(b"Content-Length: 8\r\n\r\n" + b'{"k": 3}')


def test_an_address_needs_a_host_and_a_port() -> None:
    assert find_address("http://127.0.0.1:80") == ("127.0.0.1", 80)
    with pytest.raises(ValueError, match="expected http://HOST:PORT"):
        find_address("https://example.org")
