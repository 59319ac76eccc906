"""Whether all servers answer the same: the comparison of speeds is void where they do not."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.serve_http import converse
from benchmarks.serving.serve_requests import ASKING, Material, read_paths
from benchmarks.serving.serve_servers import Server


def compare_answers(
    servers: Mapping[str, tuple[Server, str]], photos: Sequence[Path], *, k: int, first: str
) -> dict[str, dict[str, float]]:
    """The share of results that each server has in common with the first, by photo: the mean and the least.

    Args:
        servers: by name, with how they are asked by upload.
        first: name of the server that the others are compared with.

    Raises:
        SystemExit: a server does not answer a photo.
    """
    answers = {name: [ask(*server, photo, k=k) for photo in photos] for name, server in servers.items()}
    found = {}
    for name in answers.keys() - {first}:
        shares = [share_of(ours, theirs) for ours, theirs in zip(answers[first], answers[name], strict=True)]
        found[name] = {"photos": len(shares), "mean": statistics.fmean(shares), "least": min(shares)}
    return found


def ask(server: Server, asking: str, photo: Path, *, k: int) -> list[str]:
    """The paths that a server finds for a photo."""
    material = Material(server.host, k, photos=[photo.read_bytes()])
    reply = converse(server.url, ASKING[asking](material))
    if reply.status != 200:
        sys.exit(f"{server.url}: asked {asking}, it answers {reply.status}: {reply.body[:300]!r}")
    return read_paths(asking, reply)


def share_of(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """The share of the longer of two answers that the other has too, in whatever order."""
    return len(set(ours) & set(theirs)) / max(1, len(set(ours)), len(set(theirs)))


def check_agreement(agreement: Mapping[str, Mapping[str, Any]], *, least: float) -> None:
    """End the benchmark where the servers do not find the same."""
    for name, shares in agreement.items():
        if not shares["mean"] >= least:
            share = f"{100 * shares['mean']:.0f} % of its results with ours, {100 * least:.0f} % needed"
            sys.exit(f"{name} has {share}; the comparison is void")
