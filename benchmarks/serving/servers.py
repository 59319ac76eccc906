"""Servers in processes of their own: started, waited for until they answer, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import urlopen

from benchmarks.common.processes import choose_wait_policy

END_SECONDS = 15
READY_SECONDS = 180
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Server:
    """A server that has said where it listens, and `time.perf_counter` before its process was made."""

    url: str
    pid: int
    started: float


def run_ours(gallery: Path, *, log: Path) -> AbstractContextManager[Server]:
    """`retrieval serve` on a gallery."""
    command = [sys.executable, "-m", "retrieval_app", "serve", str(gallery), "--port", "0", "--json"]
    return run_server(command, log=log)


@contextmanager
def run_peer_server(settings: Mapping[str, Any], *, log: Path) -> Iterator[Server]:
    """That of `benchmarks.serving.peers`, ready; the setting `wait_policy` is that of `choose_wait_policy`."""
    own = {key: value for key, value in settings.items() if key != "wait_policy"}
    given, environment = json.dumps(own, default=str).encode(), choose_wait_policy(settings["wait_policy"])
    command = [sys.executable, "-m", "benchmarks.serving.peers"]
    with run_server(command, given, log=log, environment=environment) as server:
        wait_for(server, "/openapi.json")
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


def read_address(line: bytes) -> str | None:
    """The address in a line of JSON; None where there is none."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document.get("url") if isinstance(document, dict) else None


def wait_for(server: Server, path: str) -> None:
    """Ask for a path until the server answers 200.

    Raises:
        SystemExit: it did not in time.
    """
    problem = "it never answered"
    while time.perf_counter() - server.started < READY_SECONDS:
        try:
            urlopen(urljoin(server.url, path), timeout=60).close()
            return
        except OSError as error:  # of other answers too
            problem = str(error)
        time.sleep(_POLL_SECONDS)
    sys.exit(f"{server.url}: not ready after {READY_SECONDS} s; {problem}")
