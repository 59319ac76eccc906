"""The real server in a process of its own, on a free port, over a small gallery."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from json import dumps, loads
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.forked import ForkedCommand
from tests.retrieval_app.conftest import build_small_gallery

ROOT = Path(__file__).parents[1]
TOKEN = "a-secret-of-the-tests"
_END_S, _ANSWER_S = 40, 60
_PORTS = {"serve": ["--port"], "gradio": []}  # where it is a free one by itself


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return loads(self.body)


@dataclass
class Server:
    process: ForkedCommand | subprocess.Popen[str]
    port: int
    token: str | None
    log: Path
    output: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        source: str = "127.0.0.1",
    ) -> Answer:
        """One request on a connection of its own, from an address of this machine; `path` is sent as it is."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S, source_address=(source, 0))
        with closing(connection):
            sent = {**self.headers(), **(headers or {})}
            return ask_on(connection, method, path, body=body, json=json, headers=sent)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, values: Any) -> Answer:
        return self.ask("POST", path, json=values)

    def resident_bytes(self) -> int:
        return self._read_memory("VmRSS")

    def most_resident_bytes(self) -> int:
        return self._read_memory("VmHWM")

    def _read_memory(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        return int(found[1]) * 1024

    def stop(self) -> int:
        """End it as a service manager does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_END_S)

    def kill(self) -> None:
        """End it as a power cut does."""
        self.process.kill()
        self.process.wait(_END_S)


def ask_on(
    connection: HTTPConnection,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    json: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection that may have carried others."""
    sent = dict(headers or {})
    if json is not None:
        body = dumps(json).encode()
        sent.setdefault("Content-Type", "application/json")
    connection.request(method, path, body=body, headers=sent)
    response = connection.getresponse()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


@contextmanager
def serve(
    gallery: Path | str, *options: str, log: Path, token: str | None = None, port: int = 0, command: str = "serve"
) -> Iterator[Server]:
    """A server that is ready, of a command with `options`, ended in the end in whatever way."""
    environment = {name: value for name, value in os.environ.items() if name != "RETRIEVAL_TOKEN"}
    if token is not None:
        environment["RETRIEVAL_TOKEN"] = token
    output, written = os.pipe()
    with log.open("a") as errors, open(output) as announced:
        process = ForkedCommand(
            [command, gallery, *_PORTS[command], *([] if command == "gradio" else [port]), "--json", *options],
            env=environment,
            stdout=written,
            stderr=errors.fileno(),
        )
        os.close(written)
        try:
            line = announced.readline()
            assert line, f"the server did not start: {log.read_text()}"
            listened = urlsplit(loads(line)["url"]).port
            assert listened is not None
            yield Server(process, listened, token, log, line)
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)


def send_raw(port: int, request: bytes, *, seconds: float = 10) -> bytes:
    """All that a server sends back for bytes that need be no HTTP, until it closes or says no more for `seconds`."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        received = b""
        with suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
            connection.sendall(request)
            while chunk := connection.recv(65536):
                received += chunk
        return received


def get_raw(port: int, target: bytes, *, token: str | None = None) -> tuple[int, bytes]:
    """Status and whole answer for a GET of a target that is sent byte for byte; 0 where there was no answer."""
    lines = [b"GET " + target + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close"]
    if token is not None:
        lines.append(b"Authorization: Bearer " + token.encode())
    answer = send_raw(port, b"\r\n".join([*lines, b"", b""]))
    found = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return (int(found[1]) if found else 0), answer


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of nineteen images."""
    return build_small_gallery(tmp_path_factory.mktemp("attacked"), model=tiny_model)


@pytest.fixture(scope="module")
def server(gallery: Path) -> Iterator[Server]:
    """A server that asks for a token and may be written; none of the attacks may end it or make it fail."""
    with serve(gallery, "--writable", log=gallery.parent / "log", token=TOKEN) as server:
        yield server
        assert server.get("/v1/ready").status == 200
        assert "Traceback" not in server.log.read_text()
        assert TOKEN not in server.log.read_text()
        assert TOKEN not in server.output


def check_refused(answer: Any, *statuses: int) -> None:
    """One of these statuses, and the JSON that all errors are."""
    assert answer.status in statuses, answer
    assert set(answer.json()) == {"error", "request_id"}
    assert answer.headers["content-type"] == "application/json"
