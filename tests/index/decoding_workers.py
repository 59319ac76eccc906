"""The processes that a program decodes in, as the kernel tells of them."""

import os
import re
from pathlib import Path

from tests.waiting import wait_for

_BUSY_TICKS = 50  # of processor time, half a second: more than starting takes


def worker_pids(parent: int) -> set[int]:
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return {pid for pid in pids if _is_worker(pid) and f"PPid:\t{parent}\n" in _read(pid, "status")}


def wait_for_busy_workers(parent: int, *, beside: set[int] | None = None) -> set[int]:
    """The workers of a process, beside those known, once one of them is at work."""

    def find() -> set[int]:
        workers = worker_pids(parent) - (beside or set())
        return workers if any(_cpu_ticks(pid) > _BUSY_TICKS for pid in workers) else set()

    return wait_for(find)


def wait_for_the_end_of(pids: set[int]) -> None:
    """Return when none of these workers is there."""
    wait_for(lambda: not any(map(_is_worker, pids)))


def _is_worker(pid: int) -> bool:
    return "index.images.decoding_worker" in _read(pid, "cmdline")


def _cpu_ticks(pid: int) -> int:
    fields = re.sub(r".*\)", "", _read(pid, "stat")).split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
