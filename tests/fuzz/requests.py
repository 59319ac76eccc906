"""Damaged requests to a real server that may be written: it lives, stays ready, in bounds, and never fails."""

import json
import random
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote_from_bytes

from tests.conftest import draw_folder
from tests.fuzz.campaign import FaultError
from tests.fuzz.mutations import mutate
from tests.index.galleries import build
from tests.index.hostile import PHOTO, encode, text_bomb_png
from tests.models import write_tiny_model
from tests.serving_server import TOKEN, Server, serve

MOST_BYTES_MORE = 1 << 30  # than at the start: a photo being decoded, and some results
_REFUSED_FOR_NOW = {503, 507}  # it says that it is busy, or that the disk is full
_ANSWER_S = 0.5  # a damaged request may announce more than it sends: then nothing comes
_READY_S = 120.0
_GETS = (
    *("/", "/v1/health", "/v1/gallery", "/v1/images?limit=5&include=label,path"),
    *("/v1/images?where=label%20%3D%20%27red%27", "/v1/images?limit=3&seed=1", "/v1/images/1"),
    *("/v1/images/1/thumbnail?side=64", "/v1/images/1/preview", "/v1/images/2/labels?k=5", "/v1/facets?text=red"),
    *("/v1/labels/issues?limit=3", "/v1/duplicates", "/v1/labels/file", "/v1/jobs/1", "/v1/metrics"),
    *("/v1/openapi.json", "/page/core/dom.js"),
)
_BODIES = (
    (
        "/v1/search",
        {
            "queries": [{"image_id": 1, "crop": {"x": 0, "y": 0.5, "width": 0.5, "height": 0.5}}],
            "k": 5,
            "where": "label = 'red' and path glob '*.jpg'",
            "include": ["label"],
            "collapse_duplicates": True,
        },
    ),
    ("/v1/search", {"queries": [{"vector": [0.5] * 16}, {"image_id": 2, "weight": -1}]}),
    (
        "/v1/labels/decisions",
        {"decisions": [{"image_id": 4, "decision": "change", "label": "blue"}, {"image_id": 5, "decision": "drop"}]},
    ),
    ("/v1/labels/undo", {"step": 1}),
    ("/v1/duplicates/decisions", {"group": "0a", "decision": "duplicates", "keep": [1]}),
    ("/v1/export", {"ids": [1, 2, 3], "format": "zip"}),
)
_HEADS = (
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Content-Length: 3\r\nContent-Length: 4\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n"),
    *(b"Range: bytes=0-0,5-\r\n", b'If-None-Match: "x"\r\n', b"Content-Encoding: gzip\r\n", b'Cookie: a="\x80\r\n'),
    *(b"X: " + b"a" * 70_000 + b"\r\n", b"X: y\r\n" * 200, b" folded\r\n", b"Host: 127.0.0.1\r\nHost: other\r\n"),
    *(b"X-Forwarded-For: 1.2.3.4\r\n", b"Origin: http://elsewhere.test\r\n", b"Content-Type: text/plain\r\n"),
)


@dataclass(frozen=True, slots=True)
class Message:
    """A request as a client would send it, without a token."""

    method: str
    target: bytes
    body: bytes = b""
    kind: str = "application/json"

    def __bytes__(self) -> bytes:
        length = f"\r\nContent-Type: {self.kind}\r\nContent-Length: {len(self.body)}" if self.method == "POST" else ""
        head = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close{length}\r\n\r\n"
        return self.method.encode() + b" " + self.target + head.encode() + self.body


def request_seeds() -> list[Message]:
    """To most routes, with photos, one of them hostile."""
    seeds = [Message("GET", target.encode()) for target in _GETS]
    seeds += [Message("POST", target.encode(), json.dumps(values).encode()) for target, values in _BODIES]
    photo = encode(PHOTO.resize((40, 30)), "JPEG")
    for target, content in (
        ("/v1/search/image?k=3&where=label%20is%20not%20null", photo),
        ("/v1/search/image", text_bomb_png()),
        ("/v1/photos?name=a.jpg", photo),
        ("/v1/embed", photo),
        ("/v1/images?name=new.jpg&label=red", photo),
    ):
        seeds.append(Message("POST", target.encode(), content, "application/octet-stream"))
    return [*seeds, Message("POST", b"/v1/update"), Message("DELETE", b"/v1/jobs/1")]


def damage(seed: Message, chance: random.Random) -> bytes:
    """Damage within the body or the address, which the routes then get, or anywhere."""
    where = chance.random()
    if seed.body and where < 0.5:
        return bytes(replace(seed, body=mutate([seed.body], chance)))
    if where < 0.8:
        target = mutate([seed.target], chance)
        return bytes(replace(seed, target=quote_from_bytes(target, safe="/?&=%,*'+<>()~").encode()))
    return mutate([bytes(seed)], chance)


class RequestAttack:
    def __init__(self, server: Server) -> None:
        self._server, self._seeds = server, request_seeds()
        self._most_bytes = server.resident_bytes() + MOST_BYTES_MORE
        self._lately: list[bytes] = []
        self._log_end = server.log.stat().st_size

    def attack(self, chance: random.Random) -> str:
        """One request; the outcome is its status, or how the connection ended."""
        request = damage(chance.choice(self._seeds), chance)
        if chance.random() < 0.1:
            line, end, rest = request.partition(b"\r\n")
            request = line + end + chance.choice(_HEADS) + rest
        if chance.random() < 0.95:  # a wrong token would end most of them early
            line, end, rest = request.partition(b"\r\n")
            request = line + end + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n" + rest
        self._lately = [*self._lately[-99:], request]
        answer = self._send(request)
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        status = int(found[1]) if found else 0
        if status >= 500 and status not in _REFUSED_FOR_NOW:
            raise FaultError(f"answered with {answer[:300]!r}", content=request, suffix=".http")
        if answer and not found:
            raise FaultError(f"answered what is no HTTP: {answer[:300]!r}", content=request, suffix=".http")
        if self._server.process.poll() is not None:
            raise FaultError(f"the server ended: {self._server.process.returncode}", content=request, suffix=".http")
        return str(status) if found else "no answer"

    def check(self) -> None:
        """It is ready, its memory is bounded, and its log has no traceback."""
        problem = None
        if (peak := self._server.most_resident_bytes()) > self._most_bytes:
            problem = f"{peak >> 20} MB of memory, at most {self._most_bytes >> 20} are allowed"
            self._most_bytes = peak + MOST_BYTES_MORE
        written = self._server.log.read_bytes()[self._log_end :]
        self._log_end += len(written)
        if b"Traceback" in written:
            problem = f"a traceback in the log: {written[-3000:].decode(errors='replace')}"
        elif (ready := self._server.get("/v1/ready")).status != 200:
            problem = f"it is not ready: {ready.status} {ready.body[:300]!r}"
        if problem:
            content = json.dumps([each.decode("latin-1") for each in self._lately]).encode()
            raise FaultError(f"after the last {len(self._lately)} requests: {problem}", content=content, suffix=".json")

    def _send(self, request: bytes) -> bytes:
        received = b""
        try:
            with socket.create_connection(("127.0.0.1", self._server.port), timeout=_READY_S) as connection:
                connection.sendall(request)
                connection.settimeout(_ANSWER_S)
                while len(received) < 1000 and (chunk := connection.recv(65536)):
                    received += chunk
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            return received
        return received


@contextmanager
def attack_server(folder: Path) -> Iterator[RequestAttack]:
    """A server over sixty images."""
    build(draw_folder(folder / "images", per_class=20), folder / "gallery", write_tiny_model(folder / "model.onnx"))
    with serve(folder / "gallery", "--writable", log=folder / "log", token=TOKEN) as server:
        yield RequestAttack(server)
