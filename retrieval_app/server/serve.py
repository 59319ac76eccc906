"""Serving galleries' pages and API: open, listen, run until told to end. Needs the extra `ui`."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module

from index.errors import InputError, MissingDependencyError
from index.telemetry import switch_off_telemetry
from index.text import printable_path
from index.versions.versions import find_version
from retrieval_app.api.security.root_path import check_root_path
from retrieval_app.server.options import ServeOptions
from retrieval_app.server.own_addresses import choose_shown, name_listened, write_url

logger = logging.getLogger(__name__)
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers.

    Attributes:
        url: of the page; of several galleries of their list.
        first_visit: the same, with a code that opens the page once and soon where a token is asked for.
        by_name: the page by the machine's name, where it listens on all of its addresses.
        pages: of the galleries, by their names where there are several.
    """

    url: str
    first_visit: str
    by_name: str | None = None
    pages: Mapping[str, str] = field(default_factory=dict)


def serve_gallery(options: ServeOptions, *, on_ready: Callable[[Served], None] = lambda _: None) -> None:
    """Serve pages and API until interrupted or terminated.

    Args:
        on_ready: called once it answers.

    Raises:
        GalleryError: a gallery cannot be opened.
        InputError: the address cannot be used, or the port is taken.
        MissingDependencyError: the packages of the extra `ui` are not installed.
    """
    if options.audit is not None and not (options.audit / "audit.csv").is_file():
        raise InputError(
            f"--audit {printable_path(str(options.audit))}: expected the folder that `retrieval audit` wrote"
        )
    for served in options.galleries:
        find_version(served.path)  # says more than that the port is taken
    switch_off_telemetry()
    with listen(options.host, options.port) as listener:
        try:
            from retrieval_app.server.assembly import assemble
            from retrieval_app.server.http_server import run_server
        except ModuleNotFoundError as error:
            package = error.name or "gradio"
            raise MissingDependencyError(package=package, extra="ui", purpose="the search page") from error
        port = listener.getsockname()[1]
        below = check_root_path(options.root_path)
        url = write_url(choose_shown(options.host), port, root_path=below)
        name = name_listened(options.host)
        by_name = None if name is None else write_url(name, port, root_path=below)

        def tell() -> None:
            code = None if options.token is None else assembled.make_code()
            names = [served.name for served in options.galleries if served.name is not None]
            pages = {name: f"{url}g/{name}/" for name in names}
            on_ready(Served(url, url if code is None else f"{url}?code={code}", by_name, pages))
            if options.workers == 1:  # of several, the one that is asked first imports it then
                # It takes seconds, for which the page does not wait.
                threading.Thread(target=import_gradio, name="gradio").start()

        with assemble(options) as assembled, suppress(KeyboardInterrupt):  # the usual way to end it
            run_server(
                assembled.app, listener=listener, on_ready=tell, on_end=assembled.end, limits=options.connections,
                more_files=0 if options.workers == 1 else options.connections.connections,
            )  # fmt: skip


def import_gradio() -> None:
    """Import the Gradio app; log why it cannot be."""
    try:
        import_module("retrieval_app.gradio_app.app")
    except ImportError as error:
        logger.error(
            "Gradio cannot be imported, so /gradio/ will not answer: %s; install the extra `ui` again", error
        )


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
