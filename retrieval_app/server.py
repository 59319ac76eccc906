"""Serving a gallery's page and API: open, listen, run until told to end. Needs the extra `ui`."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from index.errors import InputError, MissingDependencyError
from index.images import printable_path
from index.telemetry import switch_off_telemetry
from index.versions import find_version
from retrieval_app.api.hosts import check_host, is_loopback
from retrieval_app.api.tokens import check_token
from retrieval_app.serving.config import ServingConfig

_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a gallery is served.

    Attributes:
        gallery: its folder.
        host: address to listen on.
        port: to listen on, 0 for a free one.
        token: that every request has to bring; None lets everybody search who can reach the address.
        allowed_hosts: names that it answers to besides those of the machine and of the address.
        writable: whether images may be added and removed, which needs a token.
        audit: folder of a finished audit, whose doubts take the place of the gallery's own.
        limits: of the engine.
    """

    gallery: Path
    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    writable: bool = False
    audit: Path | None = None
    limits: ServingConfig = field(default_factory=ServingConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: a port is a number in 0..65535 (0: any free one)")
        if self.writable and self.token is None:
            raise InputError(
                "--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN"
            )
        if self.token is not None:
            check_token(self.token)
        for name in self.allowed_hosts:
            check_host(name)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers.

    Attributes:
        url: of the page.
        first_visit: the same, with a code that opens the page once and soon where a token is asked for.
    """

    url: str
    first_visit: str


def serve_gallery(options: ServeOptions, *, on_ready: Callable[[Served], None] | None = None) -> None:
    """Serve page and API until interrupted or terminated; `on_ready` is called once it answers.

    Raises:
        GalleryError: the gallery cannot be opened.
        InputError: the address cannot be used, or the port is taken.
        MissingDependencyError: the packages of the extra `ui` are not installed.
    """
    if options.audit is not None and not (options.audit / "audit.csv").is_file():
        raise InputError(
            f"--audit {printable_path(str(options.audit))}: expected the folder that `retrieval audit` wrote"
        )
    find_version(options.gallery)  # says more than that the port is taken
    switch_off_telemetry()
    with listen(options.host, options.port) as listener:
        try:
            from retrieval_app.assembly import assemble
            from retrieval_app.http_server import run_server
        except ModuleNotFoundError as error:
            package = error.name or "gradio"
            raise MissingDependencyError(package=package, extra="ui", purpose="the search page") from error
        port = listener.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"

        def tell() -> None:
            if on_ready is not None:
                code = None if options.token is None else app.state.sign_in.make_code()
                on_ready(Served(url, url if code is None else f"{url}?code={code}"))

        with assemble(options) as app, suppress(KeyboardInterrupt):  # the usual way to end it
            run_server(app, listener=listener, on_ready=tell)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: the port is taken or not allowed, or the host is no address of this machine.
    """
    family, address = find_address(host, port)
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--port {port}: already in use on {host}; choose another (0: any free one)"
            ) from error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error


def find_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """What to listen on for a host: its family and its address.

    Raises:
        InputError: it is no known address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        problem = error.strerror if isinstance(error, socket.gaierror) else "no name of a host"
        raise InputError(f"--host {printable_path(host)}: not a known address: {problem}") from error
    return family, (str(address[0]), int(address[1]))
