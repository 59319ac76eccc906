"""Searches by id and by upload from some numbers of clients, beside the peer.

Everybody is measured once a round at each number of clients; rates and latencies are medians of the rounds. All servers
run all the time and wait while another is asked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from benchmarks.common.tables import spread
from benchmarks.indexing.images import read_all, take_evenly
from benchmarks.serving.galleries import ServedGallery, open_photos, open_quick
from benchmarks.serving.load import run_load
from benchmarks.serving.peers import K
from benchmarks.serving.requests import ASKING, Material, read_paths
from benchmarks.serving.servers import Server, run_ours, run_peer_server, wait_for
from index.threads import usable_cores

COMPARED_PHOTOS = 32
TUNED_CLIENTS = 32
UPLOAD, QUICK, PEER = "by upload", "by upload, int8", "fastapi"
LEAST_SHARED = 0.8  # of the results, on average: pixels differ a little

Settings = Mapping[str, Any]

# as people write it, and what else is tried
VARIANTS: list[Settings] = [
    {"handler": handler, "wait_policy": policy} for handler in ("def", "async def") for policy in ("unset", "PASSIVE")
]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server that is asked in one way, from some numbers of clients."""

    name: str
    server: Server
    asking: str
    clients: Sequence[int]


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    """All contestants in turns on the gallery of the photos.

    Of int8, whose model is not exactly the peer's, uploads alone are measured.
    """
    served = open_photos(options)
    quick = open_quick(options, served) if options.int8 else None
    photos = [Path(path) for path in served.photos]
    read_all(photos)
    tried = [try_variant(settings, served, options) for settings in VARIANTS]
    with ExitStack() as stack:
        ours = stack.enter_context(open_ours(served, options.out / "logs" / "ours.log"))
        contestants = [Contestant(name, ours, name, options.clients) for name in ("by id", UPLOAD)]
        if quick is not None:
            other = stack.enter_context(open_ours(quick, options.out / "logs" / "ours-int8.log"))
            contestants.append(Contestant(QUICK, other, UPLOAD, options.clients))
        best = max(tried, key=lambda each: each["per_second"])["settings"]
        variants = [("plain fastapi", VARIANTS[0], options.clients)]
        if best != VARIANTS[0] and TUNED_CLIENTS in options.clients:
            variants.append(("tuned fastapi", best, [TUNED_CLIENTS]))
        for name, settings, clients in variants:
            server = stack.enter_context(open_peer(settings, served, options))
            contestants.append(Contestant(name, server, PEER, clients))
        agreement = compare_answers(contestants[1:], take_evenly(photos, COMPARED_PHOTOS), k=K)
        for name, shares in agreement.items():
            if name != QUICK and not shares["mean"] >= LEAST_SHARED:  # Recall@1 says how good int8 is
                sys.exit(f"{name} shares {100 * shares['mean']:.0f} % of its results with ours; the comparison is void")
        rounds = [take_round(contestants, served, options, number=number) for number in range(options.rounds)]
    cells = {
        name: {clients: summarize([each[name][clients] for each in rounds]) for clients in measured}
        for name, measured in rounds[0].items()
    }
    return {
        "gallery": served.describe(),
        "k": K,
        "cores": usable_cores(),
        "agreement": agreement,
        "tried": tried,
        "recall_at_1": {} if quick is None else {"float32": served.find_recall(), "int8": quick.find_recall()},
        "rounds": rounds,
        "cells": cells,
    }


@contextmanager
def open_ours(served: ServedGallery, log: Path) -> Iterator[Server]:
    """`retrieval serve` on a gallery, once it is ready."""
    with run_ours(served.path, log=log) as server:
        wait_for(server, "/v1/ready")
        yield server


def open_peer(settings: Settings, served: ServedGallery, options: argparse.Namespace) -> AbstractContextManager[Server]:
    """The peer with the gallery's model and vectors."""
    files = {"model": served.model, "vectors": served.vectors, "paths": served.paths}
    own = {**settings, **files, "preprocess": served.contract.preprocess.to_json()}
    return run_peer_server(own, log=options.out / "logs" / "fastapi.log")


def try_variant(settings: Settings, served: ServedGallery, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a variant of the peer."""
    with open_peer(settings, served, options) as server:
        measured = ask(Contestant(PEER, server, PEER, ()), served, options, clients=TUNED_CLIENTS, seed=0)
    print(f"  warm-up, {settings}: {measured['per_second']:.1f}/s", file=sys.stderr, flush=True)
    return {"settings": settings, "per_second": measured["per_second"]}


def take_round(
    contestants: Sequence[Contestant], served: ServedGallery, options: argparse.Namespace, *, number: int
) -> dict[str, dict[str, Any]]:
    """Everybody once at each number of clients, those with the same number one after another."""
    found: dict[str, dict[str, Any]] = {each.name: {} for each in contestants}
    for clients in options.clients:
        for each in contestants:
            if clients in each.clients:
                measured = ask(each, served, options, clients=clients, seed=options.seed + number)
                found[each.name][str(clients)] = measured
                rate = f"{measured['per_second']:.1f}/s"
                print(f"  round {number}, {each.name}, {clients} clients: {rate}", file=sys.stderr, flush=True)
    return found


def ask(
    contestant: Contestant, served: ServedGallery, options: argparse.Namespace, *, clients: int, seed: int
) -> dict[str, Any]:
    """One measurement; the seed and the number of clients decide what is asked in which order."""
    address = urlsplit(contestant.server.url)
    needed = {"ids": served.ids} if contestant.asking == "by id" else {"photos": served.photos}
    return run_load(
        {
            "host": address.hostname,
            "port": address.port,
            "pid": contestant.server.pid,
            "asking": contestant.asking,
            "clients": clients,
            "k": K,
            "seed": 1000 * seed + clients,
            "warm_up": options.warm_up,
            "seconds": options.seconds,
            **needed,
        }
    )


def summarize(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One contestant at one number of clients: medians of the rounds."""
    statuses = sum((Counter(document["statuses"]) for document in documents), Counter[str]())
    times = {name: [each[name] for each in documents if each[name] is not None] for name in ("p50_ms", "p99_ms")}
    return {
        "per_second": spread([document["per_second"] for document in documents]),
        **{name: statistics.median(values) if values else None for name, values in times.items()},
        **{name: statistics.median(each[name] for each in documents) for name in ("own_cores", "server_cores")},
        "core_ms": statistics.median(1000 * each["server_cores"] / max(each["per_second"], 1e-9) for each in documents),
        "statuses": dict(statuses),
    }


def compare_answers(
    contestants: Sequence[Contestant], photos: Sequence[Path], *, k: int
) -> dict[str, dict[str, float]]:
    """The share of results that each server has in common with the first, by photo: the mean and the least."""
    first, *others = [[{*find_paths(each, photo, k=k)} for photo in photos] for each in contestants]
    found = {}
    for each, theirs in zip(contestants[1:], others, strict=True):
        shares = [len(a & b) / max(1, len(a), len(b)) for a, b in zip(first, theirs, strict=True)]
        found[each.name] = {"photos": len(shares), "mean": statistics.fmean(shares), "least": min(shares)}
    return found


def find_paths(contestant: Contestant, photo: Path, *, k: int) -> list[str]:
    """The paths that a server finds for a photo."""
    path, body, kind = ASKING[contestant.asking](Material(k, photos=[photo.read_bytes()]))
    request = urllib.request.Request(urljoin(contestant.server.url, path), body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return read_paths(reply.read())
