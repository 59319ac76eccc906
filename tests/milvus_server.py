"""A real Milvus server on loopback, for the tests that are marked `cluster`."""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from index.vectors.milvus.collection import TOKEN, import_pymilvus
from tests.waiting import wait_for

_START_S = 120
_KEEP = 'while :; do "$0" run standalone & echo $! > pid; wait $!; done'
ROOT_TOKEN = "root:Milvus"  # of a server that was just made


class RunningMilvus:
    """A server of one process, which can be killed, and started again on what it had written."""

    def __init__(self, folder: Path) -> None:
        milvus = pytest.importorskip("milvus", reason="the package milvus, which holds a server, is not installed")
        config = milvus.MilvusServerConfig(data_dir=str(folder))
        names = [name for name in config.configurable_items if name.endswith("_port")]
        health, *ports = find_free_ports(1 + len(names))
        config.update(**dict(zip(names, ports, strict=True)))
        config.set("authorization_enabled", True)
        milvus._initialize_data_files(str(folder))
        config.resolve()
        self.uri = f"http://127.0.0.1:{config.get('proxy_port')}"
        self._folder, self._health = folder, f"http://127.0.0.1:{health}/healthz"
        self._environment = os.environ | {
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(health),
            "MILVUS_RUN_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": str(folder / "bin"),
        }
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers; where it ends it is started again."""
        with (self._folder / "server.log").open("ab") as log:
            self._keeper = subprocess.Popen(
                ["sh", "-c", _KEEP, str(self._folder / "bin" / "milvus")],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self.wait()

    def wait(self) -> None:
        wait_for(self._answers, seconds=_START_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._health, timeout=5) as response:
                return b"OK" in response.read()
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """As a loss of power would: what is not on the disk is gone when it comes back."""
        os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)

    def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
            self.kill()


def find_free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


@pytest.fixture(scope="session")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMilvus]:
    """One for all tests; what it wrote goes with it. Two on a machine would ask for the same port."""
    server = RunningMilvus(tmp_path_factory.mktemp("milvus"))
    import_pymilvus()  # or the first test that asks a server would seem to have changed what this does to its logger
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def milvus_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, ROOT_TOKEN)
