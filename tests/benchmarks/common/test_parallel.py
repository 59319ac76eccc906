"""Workers: they share the work, hand on errors, and end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common.parallel import run_parallel
from index.errors import MissingDependencyError


def note_process(folder: Path, number: int) -> None:
    """Leave a file that names the process."""
    (folder / f"{number}.{os.getpid()}").touch()


def sleep_long(folder: Path, number: int) -> None:
    """Say that it has begun, then outlast any test."""
    note_process(folder, number)
    time.sleep(600)


def lack_a_package() -> None:
    """Fail as a method whose package is missing does."""
    raise MissingDependencyError(package="a package", extra="losses", purpose="a method")


def test_every_argument_is_worked_on_once_by_other_processes(tmp_path: Path) -> None:
    run_parallel(note_process, [(tmp_path, number) for number in range(4)], "tests", workers=2, threads=1)
    numbers, processes = zip(*(path.name.split(".") for path in tmp_path.iterdir()), strict=True)
    assert sorted(numbers) == ["0", "1", "2", "3"]
    assert str(os.getpid()) not in processes


def test_one_worker_is_this_process(tmp_path: Path) -> None:
    run_parallel(note_process, [(tmp_path, 0)], "tests", workers=1, threads=1)
    assert (tmp_path / f"0.{os.getpid()}").exists()


def test_an_error_of_a_worker_reaches_the_caller_as_it_was() -> None:
    with pytest.raises(MissingDependencyError, match="losses"):
        run_parallel(lack_a_package, [(), ()], "tests", workers=2, threads=1)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])  # SIGTERM is handled as little as SIGKILL
def test_workers_end_with_their_parent(tmp_path: Path, end: signal.Signals) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "from pathlib import Path; from benchmarks.common.parallel import run_parallel\n"
        "from tests.benchmarks.common.test_parallel import sleep_long\n"
        f"run_parallel(sleep_long, [(Path({str(tmp_path)!r}), n) for n in range(2)], 'tests', workers=2, threads=1)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    try:
        _wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        workers = [int(path.name.split(".")[1]) for path in tmp_path.iterdir()]
        parent.send_signal(end)
        parent.wait(timeout=60)
        _wait_until(lambda: not any(map(_is_alive, workers)))
    finally:
        parent.kill()


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_until(happened, *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)
