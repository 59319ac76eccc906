"""What `--workers` gives and costs: searches, uploads and thumbnails by one process and by several, in turns."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import psutil

from benchmarks.common.processes import add_memory, read_memory
from benchmarks.serving.serve_galleries import ServedGallery
from benchmarks.serving.serve_peers import K
from benchmarks.serving.serve_requests import ASKING, Material
from benchmarks.serving.serve_servers import Server, run_ours, wait_for
from benchmarks.serving.serve_speed import Contestant, Rounds, summarize_cell, take_round
from index.threads import usable_cores

ASKED = ("by id", "by upload", "thumbnail")


def measure_workers(served: ServedGallery, options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of workers in turns, their servers running all the time; memory after the last round."""
    with ExitStack() as stack:
        servers: dict[int, Server] = {}
        for workers in options.workers:
            log = options.out / "logs" / f"workers-{workers}.log"
            server = stack.enter_context(run_ours(served.path, "--workers", str(workers), log=log))
            wait_for(server, lambda host=server.host: ASKING["ready"](Material(host, K)))  # type: ignore[misc]
            servers[workers] = server
        contestants = [
            Contestant(f"{asking}, {workers}", server, asking, options.clients)
            for asking in ASKED
            for workers, server in servers.items()
        ]
        rounds = [take_round(contestants, served, options, number=number) for number in range(options.rounds)]
        memory = {str(workers): _measure_memory(server) for workers, server in servers.items()}
    return {
        "gallery": served.describe(), "k": K, "cores": usable_cores(), "memory": memory, "rounds": rounds,
        "cells": summarize_workers(rounds),
    }  # fmt: skip


def summarize_workers(rounds: Rounds) -> dict[str, Any]:
    """Medians of the rounds by `asking, workers` and by clients, as `serve_speed` has them."""
    measured: Mapping[str, Mapping[str, Any]] = rounds[0]["contestants"]
    return {
        name: {many: summarize_cell([each["contestants"][name][many] for each in rounds]) for many in by_clients}
        for name, by_clients in measured.items()
    }


def _measure_memory(server: Server) -> dict[str, int]:
    """Bytes of a server and of the processes below it, pages that they share counted for each."""
    process = psutil.Process(server.pid)
    own, below = read_memory(process), add_memory(process)
    return {kind: own[kind] + below[kind] for kind in own}
