"""Floods on a running server: heads and bodies without end, more connections than it serves at once, and slow clients.

Alone the server keeps its memory and recovers; behind a proxy others are answered meanwhile. All clients come from
loopback addresses of their own.
"""

import re
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.index.hostile import PHOTO, encode
from tests.proxies import HOST, read_recipe, require_programs, run_nginx
from tests.serving_server import TOKEN, Server, send_raw, serve
from tests.waiting import wait_for

MEBIBYTE = 1024 * 1024
HERE, FLOODER, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
ROOM, MORE_THAN_ALL = 64, 160  # connections
PIECES = 5 * MEBIBYTE  # that are sent to a server of what has no end, at most


def _ask(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


def _head(path: str, *, length: int) -> bytes:
    head = re.sub("^GET", "POST", _ask(path).decode()).removesuffix("\r\n")
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


_GET = b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LARGEST = "/docs/swagger-ui-bundle.js"
_CHUNKS = _GET + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "header lines": (_GET, b"x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
    "long header lines": (_GET, b"x-a: " + b"a" * 30_000 + b"\r\n"),
    "one header": (_GET + b"x-a: ", b"a" * 1000),
    "the name of a header": (_GET, b"a" * 1000),
    "space before a value": (_GET + b"x-a:", b" " * 1000),
    "a folded header": (_GET + b"x-a: a\r\n", b" a\r\n"),
    "the address": (b"GET /v1/health?", b"a" * 1000),
    "the method": (b"", b"GET" * 300),
    "empty lines": (b"", b"\r\n" * 500),
    "the size of a chunk": (_CHUNKS, b"0" * 1000),
    "the extension of a chunk": (_CHUNKS + b"1;a=", b"a" * 1000),
    "chunks": (_CHUNKS, b"3e8\r\n" + b"a" * 1000 + b"\r\n"),
    "trailers": (_CHUNKS + b"0\r\n", b"x-a: " + b"a" * 1000 + b"\r\n"),
    "requests before an answer": (b"", _GET + b"\r\n"),
    "requests after the last": (_GET + b"Connection: close\r\n\r\n", _GET + b"\r\n"),
    "what follows an upgrade": (_GET + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n", b"a" * 1000),
}

READ_TO_THE_END = {"chunks"}  # and thrown away


@pytest.fixture(scope="module")
def open_server(gallery: Path) -> Iterator[Server]:
    """A server that asks for a token, and waits for no body longer than three seconds."""
    options = ("--upload-window-s", "3", "--keep-alive-s", "3")
    with serve(gallery, *options, log=gallery.parent / "floods.log", token=TOKEN) as server:
        for head, piece in ENDLESS.values():  # what a first request makes it load is not what a flood takes
            with _connect(server, FLOODER) as connection:
                _send_endlessly(connection, head, piece)
        yield server
        assert server.get("/v1/ready").status == 200
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_takes_no_memory(open_server: Server, name: str) -> None:
    assert open_server.get("/v1/health").status == 200
    before = open_server.resident_bytes()
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(_connect(open_server, FLOODER))
            sent = _send_endlessly(connection, *ENDLESS[name])
            assert sent < PIECES or name in READ_TO_THE_END
        assert open_server.resident_bytes() - before < 8 * MEBIBYTE
    assert open_server.get("/v1/health").status == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (_GET + b"x-a: " + b"a" * 60_000 + b"\r\n\r\n", 200),
        (_GET + b"x-a: " + b"a" * 400_000 + b"\r\n\r\n", 400),
        (b"GET /v1/health?" + b"a" * 400_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_a_head_beyond_the_limits_is_refused_before_the_token(open_server: Server, head: bytes, status: int) -> None:
    answer = send_raw(open_server.port, head, seconds=1)
    assert int(answer.split(b" ")[1]) == status


def test_a_head_that_arrives_byte_by_byte_is_answered(open_server: Server) -> None:
    with _connect(open_server, OTHER) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _GET + b"\r\n":
            connection.sendall(bytes((byte,)))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_some_requests_may_be_sent_before_the_first_is_answered(open_server: Server) -> None:
    with _connect(open_server, OTHER) as connection:
        connection.sendall((_GET + b"\r\n") * 5 + _GET + b"Connection: close\r\n\r\n")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200") == 6


def test_clients_that_leave_while_requests_wait_make_no_error(open_server: Server) -> None:
    for _ in range(20):
        with _connect(open_server, OTHER) as connection:
            connection.sendall(_ask("/v1/openapi.json") * 4)
    assert open_server.get("/v1/health").status == 200
    assert "ERROR" not in open_server.log.read_text()


def test_bodies_that_are_announced_and_do_not_come_keep_nobody_out(open_server: Server) -> None:
    photo = encode(PHOTO, "PNG")
    with ExitStack() as stack:
        for _ in range(30):  # 600 MiB are announced, of 256 that there is room for
            connection = stack.enter_context(_connect(open_server, HERE))
            connection.sendall(_head("/v1/photos", length=20 * MEBIBYTE) + b"a")
        for _ in range(3):
            assert open_server.ask("POST", "/v1/photos", body=photo).status == 201
            assert open_server.ask("POST", "/v1/photos", body=bytes(19 * MEBIBYTE)).status == 422
            assert open_server.post("/v1/search", {"queries": [{"image_id": 1}]}).status == 200


def test_a_body_that_stops_or_trickles_is_given_up_and_a_slow_one_is_taken(open_server: Server) -> None:
    photo = encode(PHOTO.resize((400, 300)), "PNG")
    pieces = [photo[start : start + 10_000] for start in range(0, len(photo), 10_000)]
    with ExitStack() as stack:
        slow, stopped, trickling = (stack.enter_context(_connect(open_server, FLOODER)) for _ in range(3))
        slow.sendall(_head("/v1/photos", length=len(photo)))
        stopped.sendall(_head("/v1/photos", length=MEBIBYTE) + bytes(100_000))
        trickling.sendall(_head("/v1/photos", length=1000))
        for piece in pieces:
            slow.sendall(piece)
            with suppress(ConnectionResetError, BrokenPipeError):  # it is given up
                trickling.sendall(b"a")
            time.sleep(min(8 / len(pieces), 2))  # longer than the window in which something has to come
        assert slow.recv(65536).startswith(b"HTTP/1.1 201")
        assert stopped.recv(65536).startswith(b"HTTP/1.1 408")
        with suppress(ConnectionResetError):
            assert trickling.recv(65536).startswith(b"HTTP/1.1 408")


FLOODS = {
    "heads": (b"", _GET + b"x-a: "),
    # more than the kernel keeps, of which nothing is taken
    "answers": (_ask(LARGEST) * 8,),
    "bodies": (_head("/v1/photos", length=10 * MEBIBYTE) + b"a",),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_connections_is_refused_and_leaves_servers_as_is(gallery: Path, tmp_path: Path, kind: str) -> None:
    photo = encode(PHOTO, "PNG")
    with serve(gallery, "--connections", str(ROOM), log=tmp_path / "log", token=TOKEN) as server:
        assert server.get(LARGEST).status == 200
        before = server.resident_bytes()
        with _flood(server.port, FLOODS[kind], count=MORE_THAN_ALL):
            assert server.get("/v1/ready").status in (200, 503)
            assert server.resident_bytes() - before < 150 * MEBIBYTE
        wait_for(lambda: server.get("/v1/ready").status == 200)
        assert server.ask("POST", "/v1/photos", body=photo, source=FLOODER).status == 201
        with _flood(server.port, FLOODS[kind], count=MORE_THAN_ALL):
            assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("kind", ["heads", "bodies"])
def test_behind_a_proxy_a_flood_keeps_nobody_out(gallery: Path, tmp_path: Path, kind: str) -> None:
    require_programs("nginx", "openssl")
    photo, options = encode(PHOTO, "PNG"), ("--trusted-proxy", HERE, "--allowed-host", HOST)
    with (
        serve(gallery, *options, "--connections", str(ROOM), log=tmp_path / "log", token=TOKEN) as server,
        run_nginx(read_recipe("photos.conf"), tmp_path / "nginx", server=server.port) as site,
        _flood(site.port, FLOODS[kind], count=MORE_THAN_ALL, certificate=site.certificate),
    ):
        bearer = server.headers()
        for _ in range(3):
            assert site.ask("GET", "/v1/ready", source=OTHER).status == 200
            assert site.ask("GET", "/v1/gallery", source=OTHER, headers=bearer).status == 200
            assert site.ask("POST", "/v1/photos", body=photo, source=OTHER, headers=bearer).status == 201


def _connect(server: Server, source: str) -> socket.socket:
    return socket.create_connection((HERE, server.port), timeout=30, source_address=(source, 0))


@contextmanager
def _flood(port: int, sent: tuple[bytes, ...], *, count: int, certificate: Path | None = None) -> Iterator[None]:
    """So many connections from one address, which send these in turn; some are cut off meanwhile."""
    tls = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    with ExitStack() as stack:
        stack.enter_context(_open_files(count + 1000))
        for number in range(count):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.bind((FLOODER, 0))
            connection.connect((HERE, port))
            with suppress(ConnectionError, ssl.SSLError):
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_hostname=HOST)
                stack.enter_context(connection)
                connection.sendall(
                    sent[number % len(sent)].replace(b"Host: 127.0.0.1", f"Host: {HOST}".encode())
                    if tls
                    else sent[number % len(sent)]
                )
        time.sleep(1)
        yield


@contextmanager
def _open_files(count: int) -> Iterator[None]:
    """More of them than are usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _send_endlessly(connection: socket.socket, start: bytes, piece: bytes) -> int:
    """Bytes that were sent before the other side hung up or read no more, some `PIECES` at most."""
    sent, block = 0, piece * (65536 // len(piece) + 1)
    connection.settimeout(1)
    with suppress(ConnectionResetError, BrokenPipeError, TimeoutError):  # it is cut off, or nobody reads on
        connection.sendall(start)
        while sent < PIECES:
            connection.sendall(block)
            sent += len(block)
    return sent
