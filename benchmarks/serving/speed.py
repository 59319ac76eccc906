"""Searches by id and by upload from 1 to 128 clients, beside the peers, and beside decoding and the model alone.

Everybody is measured once a round at each number of clients; rates and latencies are medians of the rounds, and ratios
those of medians. All servers run all the time and wait while another is asked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.tables import spread
from benchmarks.indexing.images import read_all, take_evenly
from benchmarks.indexing.peers import choose_inference, run_peer
from benchmarks.serving.galleries import ServedGallery, open_photos, open_quick
from benchmarks.serving.http import converse
from benchmarks.serving.load import run_load
from benchmarks.serving.peers import K
from benchmarks.serving.requests import ASKING, Material, read_paths
from benchmarks.serving.servers import Server, run_ours, run_peer_server, wait_for
from index.threads import usable_cores

DECODING, INFERENCE = "decoding", "inference"  # alone, each on all cores: what the machine allows
INPUTS_IN_MEMORY = 128
COMPARED_PHOTOS = 32
GOAL_CLIENTS, MOST_BY_ID_P99_MS, LEAST_OF_BOUND, LEAST_OVER_PEER = 32, 20.0, 0.7, 2.0
UPLOAD, QUICK = "by upload", "by upload, int8"
OURS = {UPLOAD: "ours", QUICK: "ours in int8"}
LEAST_SHARED = 0.8  # of the results, on average: pixels differ a little

Settings = Mapping[str, Any]
Rounds = Sequence[Mapping[str, Any]]
Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]  # contestant, clients: summary of the rounds

# as people write them, and what else is tried
VARIANTS: dict[str, list[Settings]] = {
    name: [{option: value, "wait_policy": policy} for value in values for policy in ("unset", "PASSIVE")]
    for name, option, values in (
        ("fastapi", "handler", ("def", "async def")),
        ("gradio", "at_once", (1, usable_cores())),
    )
}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server that is asked in one way, from some numbers of clients."""

    name: str
    server: Server
    asking: str
    clients: Sequence[int]


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    """All contestants in turns on the gallery of the photos.

    Of int8, whose model is not exactly the peers', uploads alone are measured.
    """
    served = open_photos(options)
    quick = None if "int8" in options.without else open_quick(options, served)
    photos = [Path(path) for path in served.photos]
    read_all(photos)
    alone = choose_alone(served, images=options.alone_images)
    tried = {name: try_variants(name, served, options) for name in VARIANTS if name not in options.without}
    with ExitStack() as stack:
        ours = stack.enter_context(open_ours(served, options.out / "logs" / "ours.log"))
        contestants = [Contestant(name, ours, name, options.clients) for name in ("by id", UPLOAD)]
        if quick is not None:
            other = stack.enter_context(open_ours(quick, options.out / "logs" / "ours-int8.log"))
            contestants.append(Contestant(QUICK, other, UPLOAD, options.clients))
        for name, settings, clients in choose_peers(tried, clients=options.clients):
            kind = name.split()[-1]
            server = stack.enter_context(open_peer(kind, settings, served, options))
            contestants.append(Contestant(name, server, kind, clients))
        uploading = {each.name: (each.server, each.asking) for each in contestants if each.asking in UPLOADING}
        agreement = compare_answers(uploading, take_evenly(photos, COMPARED_PHOTOS), k=K, first=UPLOAD)
        for name, shares in agreement.items():
            if name != QUICK and not shares["mean"] >= LEAST_SHARED:  # Recall@1 says how good int8 is
                sys.exit(f"{name} shares {100 * shares['mean']:.0f} % of its results with ours; the comparison is void")
        rounds = []
        for number in range(options.rounds):
            found = take_round(contestants, served, options, number=number)
            rates = {name: run_peer(name, own)["images_per_second"] for name, own in alone.items()}
            rounds.append({**found, "alone": rates})
    peers = [each.name for each in contestants if each.asking in VARIANTS]
    recall = {} if quick is None else {"float32": served.find_recall(), "int8": quick.find_recall()}
    return {
        "gallery": served.describe(),
        "k": K,
        "cores": usable_cores(),
        "agreement": agreement,
        "tried": tried,
        "recall_at_1": recall,
        "rounds": rounds,
        **summarize(rounds, peers=peers),
    }


UPLOADING = (UPLOAD, *VARIANTS)


@contextmanager
def open_ours(served: ServedGallery, log: Path) -> Iterator[Server]:
    """`retrieval serve` on a gallery, once it is ready."""
    with run_ours(served.path, log=log) as server:
        wait_for(server, lambda: ASKING["ready"](Material(server.host, K)))
        yield server


def choose_alone(served: ServedGallery, *, images: int) -> dict[str, Mapping[str, Any]]:
    """Settings of our decoding and our model, those of the model the fastest of four on a quarter of the images."""
    few, many = (take_evenly(served.photos, count) for count in (INPUTS_IN_MEMORY, images))
    inference = {"paths": few, "model": served.model}
    chosen = choose_inference({**inference, "images": max(64, images // 4)}, cores=usable_cores(), on_gpu=False)
    preprocess = served.contract.preprocess.to_json()
    decoding = {"paths": many, "preprocess": preprocess, "workers": usable_cores()}
    return {DECODING: decoding, INFERENCE: {**inference, "images": images, **chosen["chosen"]}}


def choose_peers(
    tried: Mapping[str, Sequence[Settings]], *, clients: Sequence[int]
) -> Iterator[tuple[str, Settings, Sequence[int]]]:
    """Each peer as people write it, and where another variant was faster, that one at the goal's number of clients."""
    for name, variants in tried.items():
        usual = VARIANTS[name][0]
        yield f"plain {name}", usual, clients
        best = max(variants, key=lambda each: each["per_second"])["settings"]
        if best != usual and GOAL_CLIENTS in clients:
            yield f"tuned {name}", best, [GOAL_CLIENTS]


def try_variants(name: str, served: ServedGallery, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rate of each variant of a peer, from as many clients as the goal speaks of."""
    tried = []
    for settings in VARIANTS[name]:
        with open_peer(name, settings, served, options) as server:
            measured = ask(Contestant(name, server, name, ()), served, options, clients=GOAL_CLIENTS, seed=0)
        tried.append({"settings": settings, "per_second": measured["per_second"]})
        print(f"  warm-up of {name}, {settings}: {measured['per_second']:.1f}/s", file=sys.stderr, flush=True)
    return tried


def open_peer(
    name: str, settings: Settings, served: ServedGallery, options: argparse.Namespace
) -> AbstractContextManager[Server]:
    """A peer with the gallery's model and vectors."""
    files = {"model": served.model, "vectors": served.vectors, "paths": served.paths}
    own = {**settings, **files, "preprocess": served.contract.preprocess.to_json()}
    return run_peer_server(name, own, log=options.out / "logs" / f"{name}.log")


def take_round(
    contestants: Sequence[Contestant], served: ServedGallery, options: argparse.Namespace, *, number: int
) -> dict[str, Any]:
    """Everybody once at each number of clients, those with the same number one after another."""
    found: dict[str, dict[str, Any]] = {each.name: {} for each in contestants}
    for clients in options.clients:
        for each in contestants:
            if clients in each.clients:
                measured = ask(each, served, options, clients=clients, seed=options.seed + number)
                found[each.name][str(clients)] = measured
                rate, p99 = measured["per_second"], measured["p99_ms"]
                told = "nothing answered" if p99 is None else f"{rate:.1f}/s, p99 {p99:.1f} ms"
                print(f"  round {number}, {each.name}, {clients} clients: {told}", file=sys.stderr, flush=True)
    return {"contestants": found}


def ask(
    contestant: Contestant, served: ServedGallery, options: argparse.Namespace, *, clients: int, seed: int
) -> dict[str, Any]:
    """One measurement; the seed and the number of clients decide what is asked in which order."""
    needed = {"ids": served.ids} if contestant.asking == "by id" else {"photos": served.photos}
    return run_load(
        {
            "url": contestant.server.url,
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


def summarize(rounds: Rounds, *, peers: Sequence[str]) -> dict[str, Any]:
    """Medians of the rounds, the bound of uploads, the goals."""
    contestants: Mapping[str, Mapping[str, Any]] = rounds[0]["contestants"]
    cells = {
        name: {many: summarize_cell([each["contestants"][name][many] for each in rounds]) for many in measured}
        for name, measured in contestants.items()
    }
    alone = {name: spread([each["alone"][name] for each in rounds]) for name in (DECODING, INFERENCE)}
    bound = 1 / (1 / alone[DECODING]["median"] + 1 / alone[INFERENCE]["median"])
    goals = judge_speed(cells, bound=bound, peers=peers)
    return {"cells": cells, "alone": alone, "bound": bound, "goals": goals}


def summarize_cell(documents: Rounds) -> dict[str, Any]:
    """One contestant at one number of clients."""
    statuses = sum((Counter(document["statuses"]) for document in documents), Counter[str]())
    known = {
        name: [each[name] for each in documents if each[name] is not None] for name in ("p50_ms", "p99_ms", "most_ms")
    }
    return {
        "per_second": spread([document["per_second"] for document in documents]),
        **{name: statistics.median(values) if values else None for name, values in known.items()},
        **{name: sum(each[name] for each in documents) for name in ("answered", "refused", "failed", "broken")},
        **{name: statistics.median(each[name] for each in documents) for name in ("own_cores", "server_cores")},
        "core_ms": statistics.median(1000 * each["server_cores"] / max(each["per_second"], 1e-9) for each in documents),
        "statuses": dict(statuses),
    }


def judge_speed(cells: Cells, *, bound: float, peers: Sequence[str]) -> list[dict[str, Any]]:
    """The goals of searches; one whose number of clients was not measured is left out."""
    goals, many = [], str(GOAL_CLIENTS)

    def add(name: str, measured: float, limit: float, unit: str = "", *, at_most: bool = False) -> None:
        met = measured <= limit if at_most else measured >= limit
        goal = {"name": name, "measured": measured, "limit": limit, "unit": unit, "at_most": at_most, "met": met}
        goals.append(goal)

    if (one := cells["by id"].get("1")) is not None and one["p99_ms"] is not None:
        add("by id, one client: p99", one["p99_ms"], MOST_BY_ID_P99_MS, " ms", at_most=True)
    uploads = {name: cells[name][many]["per_second"]["median"] for name in OURS if many in cells.get(name, {})}
    if UPLOAD in uploads:
        add(f"uploads, {many} clients: ours / (1 / (1/d + 1/i))", uploads[UPLOAD] / bound, LEAST_OF_BOUND)
    for own, ours in uploads.items():
        for peer in peers:
            theirs = cells[peer][many]["per_second"]["median"]
            ratio = ours / theirs if theirs else float("inf")
            add(f"uploads, {many} clients: {OURS[own]} / {peer}", ratio, LEAST_OVER_PEER)
    return goals


def compare_answers(
    servers: Mapping[str, tuple[Server, str]], photos: Sequence[Path], *, k: int, first: str
) -> dict[str, dict[str, float]]:
    """The share of results that each server has in common with the first, by photo: the mean and the least.

    Raises:
        SystemExit: a server does not answer a photo.
    """
    answers = {name: [find_paths(*server, photo, k=k) for photo in photos] for name, server in servers.items()}
    found = {}
    for name in answers.keys() - {first}:
        pairs = [(set(ours), set(theirs)) for ours, theirs in zip(answers[first], answers[name], strict=True)]
        shares = [len(a & b) / max(1, len(a), len(b)) for a, b in pairs]
        found[name] = {"photos": len(shares), "mean": statistics.fmean(shares), "least": min(shares)}
    return found


def find_paths(server: Server, asking: str, photo: Path, *, k: int) -> list[str]:
    """The paths that a server finds for a photo."""
    material = Material(server.host, k, photos=[photo.read_bytes()])
    reply = converse(server.url, ASKING[asking](material))
    if reply.status != 200:
        sys.exit(f"{server.url}: asked {asking}, it answers {reply.status}: {reply.body[:300]!r}")
    return read_paths(asking, reply)
