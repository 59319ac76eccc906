"""Searches by id, by vector and by upload from 1 to 128 clients, beside the peers and what decoding and model allow.

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
from benchmarks.indexing.index_images import read_all, take_evenly
from benchmarks.indexing.index_peers import choose_inference, run_peer
from benchmarks.serving.serve_agreement import check_agreement, compare_answers
from benchmarks.serving.serve_galleries import ServedGallery
from benchmarks.serving.serve_goals import GOAL_CLIENTS, QUICK, UPLOAD, find_bound, judge_speed
from benchmarks.serving.serve_load import run_load
from benchmarks.serving.serve_peers import K
from benchmarks.serving.serve_requests import ASKING, Material
from benchmarks.serving.serve_servers import Server, run_ours, run_peer_server, wait_for
from index.threads import usable_cores

DECODING, INFERENCE = "decoding", "inference"  # alone, each on all cores: what the machine allows
INPUTS_IN_MEMORY = 128
COMPARED_PHOTOS = 32
LEAST_SHARED = 0.8  # of the results, on average: pixels differ a little
LEAST_SHARED_FOUND = 0.5  # where the index misses some: photos are not of the kind that it was measured with

Settings = Mapping[str, Any]
Rounds = Sequence[Mapping[str, Any]]

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


def measure_speed(
    served: ServedGallery,
    options: argparse.Namespace,
    *,
    asking: Sequence[str],
    quick: ServedGallery | None = None,
) -> dict[str, Any]:
    """All contestants in turns on one gallery; `asking` says how ours is asked.

    Of `quick`, the same photos by a model that is not exactly the peers', uploads alone are measured.
    """
    photos = [Path(path) for path in served.photos]
    read_all(photos)
    alone = choose_alone(served, images=options.alone_images)
    tried = {name: try_variants(name, served, options) for name in VARIANTS if name not in options.without}
    with ExitStack() as stack:
        ours = stack.enter_context(open_ours(served, options.out / "logs" / "ours.log"))
        contestants = [Contestant(name, ours, name, options.clients) for name in asking]
        if quick is not None:
            other = stack.enter_context(open_ours(quick, options.out / "logs" / "ours-int8.log"))
            contestants.append(Contestant(QUICK, other, UPLOAD, options.clients))
        for name, settings, clients in choose_peers(tried, clients=options.clients):
            kind = name.split()[-1]
            server = stack.enter_context(open_peer(kind, settings, served, options))
            contestants.append(Contestant(name, server, kind, clients))
        uploading = {each.name: (each.server, each.asking) for each in contestants if each.asking in UPLOADING}
        agreement = compare_answers(uploading, take_evenly(photos, COMPARED_PHOTOS), k=K, first=UPLOAD)
        same = {
            name: shares for name, shares in agreement.items() if name != QUICK
        }  # as what int8 is told by Recall@1
        check_agreement(same, least=LEAST_SHARED if served.is_exact else LEAST_SHARED_FOUND)
        rounds = []
        for number in range(options.rounds):
            found = take_round(contestants, served, options, number=number)
            rates = {name: run_peer(name, own)["images_per_second"] for name, own in alone.items()}
            rounds.append({**found, "alone": rates})
    peers = [each.name for each in contestants if each.asking in VARIANTS]
    recall = {} if quick is None else {"float32": served.find_recall(), "int8": quick.find_recall()}
    return {
        "gallery": served.describe(), "k": K, "cores": usable_cores(), "agreement": agreement, "tried": tried,
        "recall_at_1": recall, "rounds": rounds, **summarize(rounds, peers=peers),
    }  # fmt: skip


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
    decoding = {"paths": many, "preprocess": preprocess, "pool": "threads", "workers": usable_cores()}
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
    ids = {"ids": served.ids}
    needed: dict[str, Any] = {"by id": ids, "thumbnail": ids, "by vector": {"vectors": served.queries}}
    return run_load({
        "url": contestant.server.url, "pid": contestant.server.pid, "asking": {contestant.asking: 1},
        "clients": clients, "k": K, "seed": 1000 * seed + clients, "warm_up": options.warm_up,
        "seconds": options.seconds, **needed.get(contestant.asking, {"photos": served.photos}),
    })  # fmt: skip


def summarize(rounds: Rounds, *, peers: Sequence[str]) -> dict[str, Any]:
    """Medians of the rounds, the bound of uploads, the goals."""
    contestants: Mapping[str, Mapping[str, Any]] = rounds[0]["contestants"]
    cells = {
        name: {many: summarize_cell([each["contestants"][name][many] for each in rounds]) for many in measured}
        for name, measured in contestants.items()
    }
    alone = {name: spread([each["alone"][name] for each in rounds]) for name in (DECODING, INFERENCE)}
    bound = find_bound(alone[DECODING]["median"], alone[INFERENCE]["median"])
    goals = judge_speed(cells, bound=bound, peers=peers)
    return {"cells": cells, "alone": alone, "bound": bound, "goals": goals}


def summarize_cell(documents: Rounds) -> dict[str, Any]:
    """One contestant at one number of clients."""
    statuses = sum((Counter(document["statuses"]) for document in documents), Counter[str]())
    known = {
        name: [each[name] for each in documents if each[name] is not None]
        for name in ("p50_ms", "p99_ms", "most_ms")
    }
    return {
        "per_second": spread([document["per_second"] for document in documents]),
        **{name: statistics.median(values) if values else None for name, values in known.items()},
        **{name: sum(each[name] for each in documents) for name in ("answered", "refused", "failed", "broken")},
        **{name: statistics.median(each[name] for each in documents) for name in ("own_cores", "server_cores")},
        "core_ms": statistics.median(1000 * each["server_cores"] / max(each["per_second"], 1e-9) for each in documents),
        "statuses": dict(statuses),
    }  # fmt: skip
