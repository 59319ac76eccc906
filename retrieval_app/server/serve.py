"""`retrieval serve`: opens galleries, listens, and runs until interrupted. Needs the extra `ui`."""

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from index.errors import InputError, MissingDependencyError
from index.telemetry import switch_off_telemetry
from index.text import printable_path
from index.versions.versions import find_version
from retrieval_app.server.options import ServeOptions

logger = logging.getLogger(__name__)

_ELSEWHERE = {"0.0.0.0": (socket.AF_INET, "192.0.2.1", "127.0.0.1"), "::": (socket.AF_INET6, "2001:db8::1", "::1")}
"""Hosts that stand for all addresses: their family, an unused address, and that of the machine itself."""
_DISCARD_PORT = 9
_WATCH = (sys.executable, "-P", "-m", "retrieval_app", "index", "watch")
_PAUSE_S = 30.0  # before a watching process that has ended is started again


def serve_gallery(options: ServeOptions, *, on_ready: Callable[[str, str], None] = lambda *_: None) -> None:
    """Serve pages and API until interrupted or terminated.

    Args:
        on_ready: called once the server answers, with the address of the page (of several galleries, of their list),
            and the same with a code that signs in once where a token is required.
    """
    for served in options.galleries:
        find_version(served.path)  # says more than that the port is taken
    switch_off_telemetry()
    with listen(options.host, options.port) as listener:
        try:
            from retrieval_app.server.app import make_code, open_server_app
            from retrieval_app.server.http_server import run_server
        except ModuleNotFoundError as error:
            package = error.name or "fastapi"
            raise MissingDependencyError(package=package, extra="serve", purpose="the search page") from error
        url = write_url(choose_shown(options.host), listener.getsockname()[1], root_path=options.root_path)

        def report() -> None:
            on_ready(url, url if options.token is None else f"{url}?code={make_code(options)}")

        with open_server_app(options) as served_app, _watching(options), suppress(KeyboardInterrupt):  # its usual end
            run_server(
                served_app.app, listener=listener, on_ready=report, on_end=served_app.end, limits=options.connections
            )


@contextmanager
def _watching(options: ServeOptions) -> Iterator[None]:
    """Keep the galleries up to date, where that is wanted, by processes of `retrieval index watch`."""
    ended, running = threading.Event(), dict[Path, subprocess.Popen[bytes]]()
    flags = [f"--scan-every={options.watching.scan_every}", *([] if options.watching.notices else ["--no-notices"])]
    paths = os.pathsep.join(place for place in sys.path if os.path.isabs(place))  # never the working folder
    environment = {**os.environ, "PYTHONPATH": paths}

    def supervise(gallery: Path) -> None:
        command = [*_WATCH, str(gallery.absolute()), "--until-eof", *flags]
        while not ended.is_set():
            try:
                with subprocess.Popen(  # in a session of its own, without the terminal's signals
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
                ) as running[gallery]:
                    status = running[gallery].wait()
                problem = f"watching ended with status {status}"
            except OSError as error:  # too little memory, or too many open files, for now
                problem = f"watching could not begin: {error}"
            if not ended.is_set():
                logger.error("%s: %s; it begins again", printable_path(gallery), problem)
                ended.wait(_PAUSE_S)

    galleries = [served.path for served in options.galleries if options.watch]
    threads = [threading.Thread(target=supervise, args=(path,), name="watching") for path in galleries]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            while thread.is_alive():
                for process in list(running.values()):
                    process.kill()  # which loses nothing
                thread.join(0.1)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; InputError where the address cannot be used."""
    family, address = find_address(host, port)
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port {port}: already in use on {host}; choose another (0: any free one)") from error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error


def find_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family and the address of a host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        problem = error.strerror if isinstance(error, socket.gaierror) else "no name of a host"
        raise InputError(f"--host {printable_path(host)}: not a known address: {problem}") from error
    return family, (str(address[0]), int(address[1]))


def choose_shown(host: str) -> str:
    """The address to show for a host: of those that stand for all, the one by which the machine reaches others."""
    if host not in _ELSEWHERE:
        return host
    family, elsewhere, own = _ELSEWHERE[host]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((elsewhere, _DISCARD_PORT))  # sends nothing: it chooses by which address it would
            return str(asking.getsockname()[0])
    except OSError:  # no network, or no such family
        return own


def write_url(host: str, port: int, *, root_path: str = "") -> str:
    """The address of the page."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"
