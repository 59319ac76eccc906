"""From the start of the process to the first answers, with the files in memory and without.

Cold: the pages of the interpreter's packages, of the project and of the gallery are given back to the system first;
those that another process has mapped stay. How much the server then fetched from the disk is told.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common.tables import spread_all
from benchmarks.serving.serve_galleries import ServedGallery
from benchmarks.serving.serve_goals import judge_start
from benchmarks.serving.serve_peers import K
from benchmarks.serving.serve_requests import ASKING, Material
from benchmarks.serving.serve_servers import run_ours, wait_for

MOMENTS = ("address", "ready", "page", "first answer by id", "first answer by upload")
ASKED = ("ready", "page", "by id", "by upload")


def measure_start(served: ServedGallery, options: argparse.Namespace) -> dict[str, Any]:
    """Warm and cold in turns, after one start that is not counted."""
    start_once(served, options)
    found: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
    for number in range(options.starts):
        for kind, starts in found.items():
            if kind == "cold":
                drop_pages([Path(sysconfig.get_path("purelib")), Path(__file__).resolve().parents[2], served.path])
            starts.append(start_once(served, options))
            seconds = starts[-1]["ready"]
            print(f"  start {number}, {kind}: ready after {seconds:.2f} s", file=sys.stderr, flush=True)
    medians = {kind: spread_all(starts) for kind, starts in found.items()}
    goals = [judge_start(kind, medians[kind]["ready"]["median"]) for kind in found]
    return {"gallery": served.describe(), "starts": found, "medians": medians, "goals": goals}


def start_once(served: ServedGallery, options: argparse.Namespace) -> dict[str, float]:
    """Seconds from the start of the process to each of `MOMENTS`, and MiB that it read from the disk until ready."""
    with run_ours(served.path, log=options.out / "logs" / "ours-start.log") as server:
        photo = Path(served.photos[0]).read_bytes()
        material = Material(server.host, K, ids=[int(np.load(served.ids)[0])], photos=[photo])
        found = {"address": server.announced}
        for moment, asking in zip(MOMENTS[1:], ASKED, strict=True):
            wait_for(server, partial(ASKING[asking], material))
            found[moment] = time.perf_counter() - server.started
            if moment == "ready":
                found["read_mib"] = psutil.Process(server.pid).io_counters().read_bytes / 2**20
        return found


def drop_pages(folders: Sequence[Path]) -> None:
    """Tell the system that the pages of all files below some folders are not needed in memory."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
