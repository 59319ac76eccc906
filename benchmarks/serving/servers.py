"""Servers in processes of their own: started, waited for until they answer, ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.processes import choose_wait_policy
from benchmarks.serving.http import Conversation, converse, find_address

END_SECONDS = 15
READY_SECONDS = 180
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Server:
    """A server that has said where it listens, and `time.perf_counter` before its process was made."""

    url: str
    pid: int
    started: float

    @property
    def host(self) -> str:
        """HOST:PORT."""
        return ":".join(map(str, find_address(self.url)))


def run_ours(gallery: Path, *, log: Path) -> AbstractContextManager[Server]:
    """`retrieval serve` on a gallery."""
    command = [sys.executable, "-m", "retrieval_app", "serve", str(gallery), "--port", "0", "--json"]
    return run_server(command, log=log)


@contextmanager
def run_peer_server(name: str, settings: Mapping[str, Any], *, log: Path) -> Iterator[Server]:
    """One of peers.PEERS; the setting `wait_policy` is that of `choose_wait_policy`."""
    own = {key: value for key, value in settings.items() if key != "wait_policy"}
    command = [sys.executable, "-m", "benchmarks.serving.peers", name]
    given = json.dumps(own, default=str).encode()
    with tempfile.TemporaryDirectory(prefix="peer-uploads-", ignore_cleanup_errors=True) as uploads:
        environment = {**choose_wait_policy(settings["wait_policy"]), "GRADIO_TEMP_DIR": uploads}
        with run_server(command, given, log=log, environment=environment) as server:
            wait_until_listening(server)
            yield server


@contextmanager
def run_server(
    command: Sequence[str], given: bytes = b"", *, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A command that is given some bytes, prints {"url": …} and then serves; its stderr goes to a log.

    Raises:
        SystemExit: it ended before it had an address.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
        )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            process.stdin.write(given)
            process.stdin.close()
            url = read_address(process.stdout.readline())
            if url is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)  # it may have something to say
                sys.exit(f"{' '.join(command)} printed no address; what it said is in {log}")
            yield Server(url, process.pid, started)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()
            process.wait()


def wait_until_listening(server: Server) -> None:
    """Return once the server takes connections.

    Raises:
        SystemExit: it did not in time.
    """
    for _ in polling(server):
        with suppress(ConnectionRefusedError):
            socket.create_connection(find_address(server.url)).close()
            return
    sys.exit(f"{server.url}: it takes no connections after {READY_SECONDS} s")


def polling(server: Server) -> Iterator[None]:
    """Turns, until `READY_SECONDS` after the server's start."""
    while time.perf_counter() - server.started < READY_SECONDS:
        yield
        time.sleep(_POLL_SECONDS)


def read_address(line: bytes) -> str | None:
    """The address in a line of JSON; None where there is none."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document.get("url") if isinstance(document, dict) else None


def wait_for(server: Server, ask: Callable[[], Conversation]) -> None:
    """Ask until the server answers 200.

    Raises:
        SystemExit: it did not in time.
    """
    problem = "it never answered"
    for _ in polling(server):
        try:
            reply = converse(server.url, ask())
        except OSError as error:
            problem = str(error)
        else:
            if reply.status == 200:
                return
            problem = f"it answers {reply.status}: {reply.body[:200]!r}"
    sys.exit(f"{server.url}: not ready after {READY_SECONDS} s; {problem}")
