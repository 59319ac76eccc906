"""nginx and Caddy before a server, with a certificate of their own, by the files of docs/deploy/."""

import contextlib
import os
import random
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT
from tests.serving_server import Answer, ask_on

HOST = "photos.example.org"
DOCUMENT = ROOT / "docs/deploy.md"
_SHOWN = "/etc/ssl/photos.example.org"
_START_S, _ANSWER_S = 20, 60


def require_programs(*names: str) -> None:
    """Skip the module where one of these programs is missing; on CI none may be."""
    missing = [name for name in names if shutil.which(name, path=_find_path()) is None]
    problem = f"not installed here: apt-get install {' '.join(missing)}"
    if missing and "CI" not in os.environ:
        pytest.skip(problem, allow_module_level=True)
    assert not missing, problem


def _find_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin"  # where Debian's nginx is, and not everybody looks


class _SiteConnection(HTTPSConnection):
    """To a site at this machine, from one of its addresses, whatever the site's name leads to elsewhere."""

    def __init__(self, site: "Site", *, source: str) -> None:
        super().__init__(site.host, site.port, timeout=_ANSWER_S)
        self._to, self._source = site, source

    def connect(self) -> None:
        context = ssl.create_default_context(cafile=str(self._to.certificate))
        plain = socket.create_connection(("127.0.0.1", self._to.port), _ANSWER_S, source_address=(self._source, 0))
        self.sock = context.wrap_socket(plain, server_hostname=self._to.host)


@dataclass(frozen=True)
class Site:
    port: int
    root: str
    certificate: Path
    host: str = HOST

    @property
    def origin(self) -> str:
        """What browsers call it."""
        return f"https://{self.host}:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        source: str = "127.0.0.1",
        body: bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request for a path below the root, from an address of this machine."""
        connection = _SiteConnection(self, source=source)
        try:
            return ask_on(connection, method, f"{self.root}{path}", body=body, json=json, headers=headers)
        finally:
            connection.close()


def _fill_in(recipe: str, folder: Path, *, server: int) -> tuple[str, Path]:
    """A recipe with the server's port, and a certificate for the host, signed by itself, which is made here."""
    folder.mkdir()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={HOST} -addext subjectAltName=DNS:{HOST}"
    command = ["openssl", *words.split(), "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    shown = (f"{_SHOWN}.pem", str(certificate)), (f"{_SHOWN}.key", str(key))
    return put(recipe, *shown, ("127.0.0.1:7860", f"127.0.0.1:{server}")), certificate


def read_recipe(name: str) -> str:
    """A file that the page links."""
    return (ROOT / "docs/deploy" / name).read_text(encoding="utf-8")


def put(text: str, *pairs: tuple[str, str]) -> str:
    """A text with some of it replaced, all of which must be in it."""
    for shown, meant in pairs:
        assert shown in text, f"docs/deploy/ no longer has {shown!r}"
        text = text.replace(shown, meant)
    return text


@contextmanager
def run_nginx(recipe: str, folder: Path, *, server: int, root: str = "") -> Iterator[Site]:
    port = find_port()
    recipe = put(recipe, ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"))
    site, certificate = _fill_in(recipe, folder, server=server)
    (folder / "photos.conf").write_text(site)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {temporary} include {folder}/photos.conf; }}"
    )
    command = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with _run(command, folder=folder, port=port):
        yield Site(port, root, certificate)


@contextmanager
def run_caddy(recipe: str, folder: Path, *, server: int, root: str = "") -> Iterator[Site]:
    port = find_port()
    recipe = put(recipe, (f"{HOST} {{", f"{HOST}:{port} {{\n    bind 127.0.0.1"))
    site, certificate = _fill_in(recipe, folder, server=server)
    own = "{\n    admin off\n    auto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(own + site)
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with _run(command, folder=folder, port=port):
        yield Site(port, root, certificate)


@contextmanager
def _run(command: list[str], *, folder: Path, port: int) -> Iterator[None]:
    """A program that listens on a port, until the end of the context."""
    home = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            command, stdout=written, stderr=written, env={**os.environ, "PATH": _find_path(), **home}
        )
        try:
            end = time.monotonic() + _START_S
            while not _answers(port):
                assert process.poll() is None, f"{command[0]} did not start: {log.read_text()}"
                assert time.monotonic() < end, f"{command[0]} does not listen: {log.read_text()}"
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(_START_S)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def find_port() -> int:
    """A port that nobody listens on now, below those that the system gives to connections, so that it stays free."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port between 20,000 and 30,000")
