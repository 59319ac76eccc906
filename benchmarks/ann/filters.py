"""Searches among the few rows that a filter keeps: random rows, and rows that are alike, as a label's are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.ann.bench import AnnBench
from benchmarks.ann.curves import time_singles
from benchmarks.ann.peers import OURS, Opened, Parameters
from benchmarks.ann.truth import NEIGHBOURS, find_recall, find_truth
from index.arrays import NO_ID, Mask, Vectors

SHARES = (0.5, 0.05, 0.005, 0.0005)
KINDS = ("random", "alike")
MASKS = 3  # of each kind and share
QUERIES = 100  # for each mask
MOST_SECONDS = 1.0  # for each parameter and mask; who is slower answers fewer queries
PEERS = ("hnswlib M=16", "faiss HNSW32,Flat")


def measure_filters(bench: AnnBench, *, seed: int) -> dict[str, Any]:
    """Everybody who can filter, for every kind and share of rows kept."""
    chosen = [each for each in bench.contestants if each.name in (OURS, *PEERS)]
    for each in chosen:
        bench.build(each)
    opened = bench.open_built(chosen)
    cells = [
        bench.measure(f"filters-{kind}-{share:g}", partial(_measure_cell, bench, opened, kind, share, seed=seed))
        for kind in KINDS
        for share in SHARES
    ]
    return {"vectors": bench.base.shape[0], "width": bench.base.shape[1], "cells": cells}


def make_mask(base: Vectors, *, kind: str, share: float, seed: int) -> Mask:
    """(N,) bool: random rows, or those nearest to one row, of a share (10 at least)."""
    generator = np.random.default_rng(seed)
    count = max(NEIGHBOURS, round(share * len(base)))
    if kind == "random":
        kept = generator.permutation(len(base))[:count]
    else:
        kept = np.argpartition(-(base @ base[generator.integers(len(base))]), count - 1)[:count]
    mask = np.zeros(len(base), dtype=bool)
    mask[kept] = True
    return mask


def _measure_cell(
    bench: AnnBench, opened: Mapping[str, Opened], kind: str, share: float, *, seed: int
) -> dict[str, Any]:
    base = np.array(bench.base)
    masks = [make_mask(base, kind=kind, share=share, seed=seed + number) for number in range(MASKS)]
    shared = np.array_split(bench.queries[: MASKS * QUERIES], MASKS)
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for mask, queries in zip(masks, shared, strict=True):
        truth = find_truth(base, queries, allowed=mask)
        for name, index in opened.items():
            for place, parameters in enumerate(index.filtered_points):
                find = index.prepare(parameters, threads=1, allowed=mask)
                answers = time_singles(find, queries, most_seconds=MOST_SECONDS)
                count = len(answers.ids)
                recall = find_recall(base, queries[:count], answers.ids, truth=truth.take(count), allowed=mask)
                short = int(((answers.ids != NO_ID).sum(axis=1) < NEIGHBOURS).sum())
                found = {"recall": recall, "queries": count, "short": short, "median_ms": answers.median_ms}
                rows.setdefault((name, place), []).append(found)
    print(f"  filters: {kind}, {share:.2%} kept", file=sys.stderr, flush=True)
    points = [
        {"contestant": name, "parameters": opened[name].filtered_points[place], **summarise(found)}
        for (name, place), found in rows.items()
    ]
    return {"kind": kind, "share": share, "kept": int(masks[0].sum()), "points": points}


def summarise(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Some masks together: recall by query, the median of the latencies, and the queries with fewer than 10 results."""
    queries = sum(each["queries"] for each in found)
    return {
        "queries": queries,
        "recall": sum(each["recall"] * each["queries"] for each in found) / queries,
        "short": sum(each["short"] for each in found),
        "median_ms": float(np.median([each["median_ms"] for each in found])),
    }


def choose_peer(points: Sequence[Mapping[str, Any]], name: str, *, least_recall: float) -> Parameters:
    """The fastest of a peer's points with a recall, or else the one with the highest."""
    own = [point for point in points if point["contestant"] == name]
    good = [point for point in own if point["recall"] >= least_recall]
    if good:
        return min(good, key=lambda point: point["median_ms"])
    return max(own, key=lambda point: point["recall"])
