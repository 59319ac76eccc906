"""Servers of a test's own on this machine: one of files, with faults on demand, and one that speaks S3."""

import hashlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

OWNER = "owner"  # the access key that may read every bucket
_LISTED_AT_ONCE = 3


@dataclass(frozen=True)
class Fault:
    """What a request is answered with in the place of a file: a status, or half of the file."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    wait_s: float = 0.0


@dataclass
class FileServer:
    """Files by path, and what was asked for.

    `faults` are used up one by one; `plain` are paths whose answers tell nothing of when the file changed, `odd` such
    with headers of their own.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    plain: set[str] = field(default_factory=set)
    odd: dict[str, dict[str, str]] = field(default_factory=dict)
    has_head: bool = True
    has_ranges: bool = True
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    address: str = ""
    modified: float = field(default_factory=time.time)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str) -> int:
        return sum(number for (each, _), number in self.asked.items() if each == method)

    def note(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.asked[method, path] += 1
            return self.faults[path].pop(0) if self.faults.get(path) else None


class _Handler(BaseHTTPRequestHandler):
    serves: FileServer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        fault = self.serves.note(self.command, path)
        if fault is not None and fault.wait_s:
            time.sleep(fault.wait_s)
        if fault is not None and fault.status != 200:
            self.send(fault.status, fault.headers, b"")
        elif self.command == "HEAD" and not self.serves.has_head:
            self.send(405, {}, b"")
        else:
            self.give(path, is_cut=fault is not None and fault.is_cut)

    def give(self, path: str, *, is_cut: bool = False) -> None:
        if path not in self.serves.files:
            self.send(404, {}, b"")
            return
        data, headers, status = self.serves.files[path], {}, 200
        if path not in self.serves.plain:
            headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}
            headers["Last-Modified"] = formatdate(self.serves.modified, usegmt=True)
        if (wanted := self.headers.get("Range")) and self.serves.has_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            headers["Content-Range"] = f"bytes {first}-{last or len(data) - 1}/{len(data)}"
            data, status = data[int(first) : int(last) + 1 if last else None], 206
        headers |= self.serves.odd.get(path, {})
        self.send(status, headers, data, sent=len(data) // 2 if is_cut else None)

    def send(self, status: int, headers: dict[str, str], body: bytes, *, sent: int | None = None) -> None:
        with suppress(ConnectionError):  # who asked may have left
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:sent])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _BucketHandler(_Handler):
    """What S3 answers to GetObject, HeadObject and ListObjectsV2; files are called `/bucket/key`."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if f"Credential={OWNER}/" not in self.headers.get("Authorization", ""):
            self._refuse(403, "AccessDenied")
        elif not any(path.startswith(f"/{bucket}/") for path in self.serves.files):
            self._refuse(404, "NoSuchBucket")
        elif not key:
            self.serves.note("LIST", f"/{bucket}")
            self._list(bucket, {name: values[0] for name, values in parse_qs(parts.query).items()})
        elif f"/{bucket}/{key}" not in self.serves.files:
            self._refuse(404, "NoSuchKey")
        else:
            super()._answer()

    def _refuse(self, status: int, code: str) -> None:
        self.send(status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _list(self, bucket: str, asked: dict[str, str]) -> None:
        start, after = asked.get("prefix", ""), asked.get("continuation-token", "")
        names = (path.removeprefix(f"/{bucket}/") for path in self.serves.files if path.startswith(f"/{bucket}/"))
        keys = sorted((name for name in names if name.startswith(start) and name > after), key=str.encode)
        page, is_last = keys[:_LISTED_AT_ONCE], len(keys) <= _LISTED_AT_ONCE
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.serves.modified))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><ETag>&quot;"
            f"{hashlib.md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Contents>"
            for key in page
            for data in [self.serves.files[f"/{bucket}/{key}"]]
        )
        more = "" if is_last else f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        body = (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{str(not is_last).lower()}</IsTruncated>"
            f"{more}{rows}</ListBucketResult>"
        )
        self.send(200, {"Content-Type": "application/xml"}, body.encode())


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # or connections beyond the usual five wait for a second


@contextmanager
def serve_files(*, as_buckets: bool = False) -> Iterator[FileServer]:
    """A server at 127.0.0.1, on a free port."""
    files = FileServer()
    handler = type("Handler", (_BucketHandler if as_buckets else _Handler,), {"serves": files})
    with _Server(("127.0.0.1", 0), handler) as server:
        files.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield files
        finally:
            server.shutdown()
            thread.join()
