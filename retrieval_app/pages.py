"""Serving a gallery's search page: open, listen, run. Needs the extra `ui`."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from index.errors import InputError, MissingDependencyError
from index.gallery import Gallery
from retrieval_app.service import SearchService


def serve_gallery(
    gallery_path: Path, *, host: str, port: int, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve the page until interrupted; port 0 takes a free one, `on_ready` gets the URL once it answers.

    Raises:
        GalleryError: the gallery cannot be opened.
        InputError: the address cannot be used, or the port is taken.
        MissingDependencyError: the packages of the extra `ui` are not installed.
    """
    service = SearchService(Gallery.open(gallery_path))
    for image in service.sample(1, seed=0):
        service.search_member(image.id, k=1)  # a damaged index shows now, not at the first visitor's search
    with listen(host, port) as listener:
        try:
            from retrieval_app.web import create_app, run_server
        except ModuleNotFoundError as error:
            package = error.name or "gradio"
            raise MissingDependencyError(package=package, extra="ui", purpose="the search page") from error
        bound_port = listener.getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound_port}/"
        app = create_app(service, host=host, port=bound_port)
        with suppress(KeyboardInterrupt):  # the usual way to end it
            run_server(app, listener=listener, on_ready=lambda: on_ready(url) if on_ready else None)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: the port is no port, taken or not allowed, or the host is no address of this machine.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: a port is a number in 0..65535 (0: any free one)")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror as error:
        raise InputError(f"--host {host}: not a known address: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--port {port}: already in use on {host}; choose another (0: any free one)"
            ) from error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error
