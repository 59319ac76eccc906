"""Processes of their own that import nothing anew: each is forked off one that has loaded it all.

They are killed, limited and watched as any other. What is tested of the start itself (which modules load, what is
said before) starts `python -m retrieval_app`.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PRELOADED = (
    *("retrieval_app.commands.cli", "faiss", "pytest", "tests.conftest", "index.commands.index_group"),
    *("index.writing.build", "index.repair.repair"),
)
_SERVERS = (
    *("retrieval_app.server.serve", "retrieval_app.server.app", "retrieval_app.server.http_server"),
    *("retrieval_app.commands.serve_command", "scipy.optimize"),
)
"""Loaded as well before the first command that serves."""
_TRAININGS = ("timm", "training.commands", "training.run.finetuning.stage", "training.run.train")
"""Loaded as well before the first training, with torch, which takes seconds."""
_COMMAND = ("retrieval_app.commands.cli", "run")
_LARGEST_REQUEST = 1 << 17
RUN_EACH = """
import shlex, sys
from retrieval_app.commands.cli import main
for line in sys.argv[1:]:
    assert main(shlex.split(line)) == 0, line
"""
"""A program for `python -c`, which runs command lines one after the other, where one process is to do for all."""
_LEFT_TO_THE_PARENT = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"}  # read when a library is loaded


class ForkedCommand:
    """A running command, with what tests use of a `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
        function: Callable[[], object] | None = None,
    ) -> None:
        """Start it in the checkout.

        Args:
            words: after `retrieval`; where it is a function, what that finds in `sys.argv[1:]`.
            stdout: an open file, as is `stderr`.
            stderr: where what it complains of goes.
            env: its environment, this process's otherwise.
            function: of a module, called instead of the command line.
        """
        told, telling = os.pipe()
        called = _COMMAND if function is None else (function.__module__, function.__qualname__)
        wanted = {"call": called, "words": [*map(str, words)], "env": {**(os.environ if env is None else env)}}
        with open(os.devnull) as nothing:
            request = json.dumps(wanted).encode()
            _parent().ask(request, [nothing.fileno(), stdout, stderr, telling])
        os.close(telling)
        self._told = os.fdopen(told)
        self.returncode: int | None = None
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            line = self._told.readline()
            assert line, "the process from which commands are forked has ended"
            self.returncode = int(line)
            self._told.close()
        return self.returncode


def run(
    words: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    function: Callable[[], object] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Its exit code and what it wrote, once it has ended; the arguments are those of `ForkedCommand`."""
    read_out, out = os.pipe()
    read_errors, errors = os.pipe()
    with ThreadPoolExecutor(2) as readers:
        process = ForkedCommand(words, stdout=out, stderr=errors, env=env, function=function)
        os.close(out)
        os.close(errors)
        written = [readers.submit(_read_all, end) for end in (read_out, read_errors)]
        try:
            process.wait(timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess([*words], process.wait(), *(text.result() for text in written))


def _read_all(end: int) -> str:
    with os.fdopen(end) as file:
        return file.read()


class _Parent:
    """The process from which commands are forked; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            )
        self._lock = threading.Lock()

    def ask(self, request: bytes, files: list[int]) -> None:
        assert len(request) < _LARGEST_REQUEST
        with self._lock:
            socket.send_fds(self._socket, [request], files)

    def end(self) -> None:
        self._socket.close()
        self._process.wait(120)


@cache
def _parent() -> _Parent:
    parent = _Parent()
    atexit.register(parent.end)
    return parent


def _answer_requests(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request; there, what it is to do; here, nothing once nobody can ask any more."""
    running: dict[int, tuple[int, int]] = {}  # by the file that tells of its end: its number, and whom to tell
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                pid, telling = running.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(telling, code)
                os.close(telling)
                continue
            request, files, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
            if not request:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            wanted = json.loads(request)
            if wanted["call"] == [*_COMMAND] and wanted["words"][0] == "serve":
                _load(_SERVERS)
            if wanted["call"][0].startswith(("training.", "tests.training.")):
                _load(_TRAININGS)
            pid = os.fork()
            if pid == 0:
                requests.close()
                for ended, (_, telling) in running.items():
                    os.close(ended)
                    os.close(telling)
                for number in range(3):
                    os.dup2(files[number], number)
                for file in files:
                    os.close(file)
                return dict(wanted)
            *standard, telling = files
            for file in standard:
                os.close(file)
            running[os.pidfd_open(pid)] = pid, telling
            _tell(telling, pid)


def _tell(telling: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(telling, f"{number}\n".encode())


def _load(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)


def main() -> None:
    """Load what most commands need, fork for whoever asks, and become the command in each process that is forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this one
    _load(_PRELOADED)
    requests = socket.socket(fileno=int(sys.argv[1]))
    wanted = _answer_requests(requests)
    if wanted is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = {name: os.environ[name] for name in _LEFT_TO_THE_PARENT}
    os.environ.clear()
    os.environ.update({**wanted["env"], **kept})
    module, name = wanted["call"]
    sys.argv = ["retrieval", *wanted["words"]]
    sys.stdout.reconfigure(line_buffering=True)
    getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    main()
