"""A process that is handed one file after another and watched from outside: its processor time, its memory, its end."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import FaultError

ROOT = Path(__file__).parents[2]
MOST_CPU_S = 8.0  # one file may cost 5 s; the rest is what is around it
MOST_BYTES = 1_300 * 1024 * 1024  # one file may take 1 GB, beside what the processes hold anyway
HANGS_S = 400.0  # however busy the machine is
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.2


class Subject:
    """The process of `tests.fuzz.subject`, started again when it has ended.

    Args:
        name: of the trial.
        folder: where they are written.
    """

    def __init__(self, name: str, *, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.fuzz.subject", name]
        self._folder = folder
        self._process = self._start()

    def attack(self, content: bytes, *, suffix: str) -> str:
        """Try a file; the outcome.

        Raises:
            FaultError: the process ended, hung, took too much, or failed in a way that nobody foresaw.
        """
        path = self._folder / f"case{suffix}"
        path.write_bytes(content)
        self._forget_peak()
        before, begun = self._cpu_s(), time.monotonic()
        self._process.stdin.write(json.dumps(str(path)) + "\n")
        self._process.stdin.flush()
        problem = None
        while problem is None and not select.select([self._process.stdout], [], [], _LOOK_S)[0]:
            if self._cpu_s() - before > MOST_CPU_S:
                problem = f"more than {MOST_CPU_S:g} s of processor time"
            elif self._peak_bytes() > MOST_BYTES:
                problem = f"more than {MOST_BYTES >> 20} MB of memory"
            elif time.monotonic() - begun > HANGS_S:
                problem = f"no answer within {HANGS_S:g} s"
        answer = {} if problem else json.loads(self._process.stdout.readline() or "{}")
        cpu_s, peak = self._cpu_s() - before, self._peak_bytes()
        if not answer:
            problem = problem or f"the process ended with status {self._process.wait(10)}"
            self.stop()
            self._process = self._start()
        elif "problem" in answer:
            problem = answer["problem"].strip()
        elif cpu_s > MOST_CPU_S:
            problem = f"{cpu_s:.1f} s of processor time, at most {MOST_CPU_S:g} are allowed ({answer['outcome']})"
        elif peak > MOST_BYTES:
            problem = f"{peak >> 20} MB of memory, at most {MOST_BYTES >> 20} are allowed ({answer['outcome']})"
        if problem:
            raise FaultError(problem, content=content, suffix=suffix)
        return str(answer["outcome"])

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=self._folder,
            start_new_session=True,
        )

    def _cpu_s(self) -> float:
        return sum(map(read_cpu_s, process_tree(self._process.pid)))

    def _peak_bytes(self) -> int:
        return sum(map(read_peak_bytes, process_tree(self._process.pid)))

    def _forget_peak(self) -> None:
        for pid in process_tree(self._process.pid):
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            except OSError:
                continue  # it has just ended


@contextmanager
def start_subject(name: str, *, folder: Path) -> Iterator[Subject]:
    subject = Subject(name, folder=folder)
    try:
        yield subject
    finally:
        subject.stop()


def process_tree(pid: int) -> list[int]:
    """A process and all below it, as far as they are still there."""
    found, waiting = list[int](), [pid]
    while waiting:
        found.append(waiting.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                waiting += map(int, children.read_text().split())
            except OSError:
                continue
    return found


def read_cpu_s(pid: int) -> float:
    """Processor time of a process and of the children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def read_peak_bytes(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
