"""The real commands, watched call by call: they reach no address but this machine's own, and write where told.

Nothing of the environment that switches reports off by chance, as CI does, reaches them; their home is empty.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.forked import RUN_EACH
from tests.photos import KINDS, write_photos
from tests.training.conftest import FLAGS
from tests.watched import read_log, require_strace, strace_command

ROOT = Path(__file__).parents[2]
NAME_SERVICE = "/var/run/nscd/socket"  # asked by the C library for the name of the user, on this machine
SYSTEM = (Path("/dev/null"), Path("/dev/tty"), Path("/dev/shm"))
LONG_S = 13  # ONNX Runtime, left alone, looks its maker's host up after some ten seconds


@dataclass(frozen=True)
class Machine:
    """A folder with a home, a place for temporary files and one for work, in which commands are watched."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """All that a command gets to know."""
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
        }

    @property
    def work(self) -> Path:
        """Where commands are started."""
        return self.folder / "work"

    @property
    def cache(self) -> Path:
        """The one folder that the program keeps for itself."""
        return self.folder / "home" / ".cache" / "retrieval-app"

    def command(self, *words: str | Path) -> tuple[Path, list[str]]:
        """The log of a Python process, and its words with the tracer before them."""
        log = self.folder / f"{len(list(self.folder.glob('*.strace')))}.strace"
        return log, [*strace_command(log), sys.executable, *map(str, words)]

    def run(self, *commands: tuple[str | Path, ...], into: tuple[Path, ...]) -> None:
        """Run commands in one process; they write into the folders that are named, and into their cache."""
        lines = [shlex.join(map(str, words)) for words in commands]
        log, command = self.command("-c", RUN_EACH, *lines)
        ran = subprocess.run(
            command, cwd=self.work, env=self.environment(), capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        self.check(log, *into)

    def check(self, log: Path, *into: Path) -> None:
        """Whether what a log says keeps the promise."""
        watched = read_log(log, folder=self.work)
        assert watched.strangers() == []
        assert watched.unix_sockets <= {NAME_SERVICE}
        outside = watched.written_outside(*into, self.cache, self.folder / "tmp", *SYSTEM)
        # the folders above the cache are made, and have nothing else in them
        assert [path for path in outside if path not in self.cache.parents] == []
        assert not any((self.folder / "tmp" / name).exists() for name in (".ses", "onnxruntime.db"))

    def check_home(self) -> None:
        """Whatever was run, the home has nothing but the cache."""
        below = [path for path in (self.folder / "home").rglob("*") if not path.is_relative_to(self.cache)]
        assert [path for path in below if path not in self.cache.parents] == []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    require_strace()
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    return Machine(tmp_path)


def test_the_watch_tells_strangers_and_files_elsewhere(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '7 connect(3<UDP:[1]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("192.0.2.1")}, 16) = 0\n'
        '7 connect(4, {sa_family=AF_INET6, inet_pton(AF_INET6, "::1", &sin6_addr)}, 28 <unfinished ...>\n'
        '8 sendto(5, "x", 1, 0, {sa_family=AF_INET, sin_addr=inet_addr("192.0.2.2")}, 16) = 1\n'
        "7 <... connect resumed>) = 0\n"
        '8 connect(6, {sa_family=AF_UNIX, sun_path="/run/daemon"}, 110) = -1 ENOENT (No such file or directory)\n'
        '8 openat(AT_FDCWD</work>, "read", O_RDONLY|O_CLOEXEC) = 3</work/read>\n'
        '8 openat(AT_FDCWD</work>, "out/caf\\303\\251", O_WRONLY|O_CREAT|O_CLOEXEC, 0666) = 3</work/out/x>\n'
        '8 openat(6</home/.cache>, "deviceid.tmp", O_WRONLY|O_CREAT|O_EXCL <unfinished ...>\n'
        '7 mkdir("/there", 0777) = -1 EEXIST (File exists)\n'
        '7 rename("out/a", "/elsewhere/b") = 0\n'
        '7 symlinkat("/target", 7</work/out>, "link") = 0\n'
    )
    watched = read_log(log, folder=Path("/work"))
    assert watched.strangers() == ["192.0.2.1", "192.0.2.2"]
    assert watched.addresses >= {"::1"}
    assert watched.unix_sockets == {"/run/daemon"}
    assert watched.written == {
        Path(path)
        for path in ("/work/out/café", "/home/.cache/deviceid.tmp", "/work/out/a", "/elsewhere/b", "/work/out/link")
    }
    assert watched.written_outside(Path("/work/out")) == [Path("/elsewhere/b"), Path("/home/.cache/deviceid.tmp")]


@pytest.mark.timeout(900)
def test_the_whole_way_from_training_to_serving_reports_nothing(machine: Machine) -> None:
    write_photos(machine.work / "photos", kinds=KINDS[:3], pictures_per_kind=8, seed=0, size=48)
    photos, run, gallery = machine.work / "photos", machine.work / "run", machine.work / "gallery"
    audit, copies, exported = machine.work / "audit", machine.work / "copies", machine.work / "exported"
    exported.mkdir()
    found = machine.work / "found"
    machine.run(
        ("train", photos, "--out", run, *FLAGS),
        ("audit", run, "--out", audit),
        ("export", run, "--out", exported / "model.onnx"),
        ("compare", photos, "builtin", run, "--out", found),
        into=(run, audit, exported, found),
    )
    query = next(photos.rglob("*.jpg"))
    machine.run(
        ("index", "build", exported / "model.onnx", photos, "--out", gallery),
        ("search", gallery, query),
        ("evaluate", gallery),
        ("duplicates", gallery, "--out", copies),
        into=(gallery, copies),
    )
    serve_and_ask(machine, gallery, query, seconds=LONG_S)
    machine.check_home()


def serve_and_ask(machine: Machine, gallery: Path, query: Path, *, seconds: float) -> None:
    """Serve a gallery for a while, open its page, search, and end it as a service manager does."""
    log, command = machine.command("-m", "retrieval_app", "serve", gallery, "--port", "0", "--json")
    server = subprocess.Popen(
        command,
        cwd=machine.work,
        env=machine.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        port = int(json.loads(server.stdout.readline())["url"].rstrip("/").rpartition(":")[2])
        for method, path, body in (
            ("GET", "/", None),
            ("GET", "/v1/ready", None),
            ("GET", "/v1/gallery", None),
            ("POST", "/v1/search/image?k=3", query.read_bytes()),
        ):
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            connection.close()
        time.sleep(seconds)
        os.killpg(server.pid, signal.SIGTERM)  # the tracer lets it pass
        _, errors = server.communicate(timeout=60)
        assert server.returncode == 0, errors
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()
    machine.check(log, gallery)
