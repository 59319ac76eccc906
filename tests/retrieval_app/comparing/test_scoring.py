"""Scores, intervals and pairs, beside what is counted by hand and what `evaluate` says."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.arrays import Floats, Labels, normalise_rows
from index.evaluation.comparison import bootstrap_interval
from index.evaluation.metrics import Labelled, score_retrieval
from index.items import FoundItem, Place
from retrieval_app.comparing.compare_report import evaluate_candidates
from retrieval_app.comparing.embedding import Images
from retrieval_app.comparing.public import Candidate

NAMES = ["a", "b", "c", "lone"]
LABELS = np.append(np.arange(120) % 3, 3)  # three labels, and one of a single image


def draw_vectors(*, noise: float, seed: int, width: int = 8) -> Floats:
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(len(NAMES), width))
    return normalise_rows((centres[LABELS] + noise * chance.normal(size=(len(LABELS), width))).astype(np.float32))


VECTORS = [draw_vectors(noise=0.8, seed=1), draw_vectors(noise=1.5, seed=2, width=6), draw_vectors(noise=1.6, seed=3)]


def evaluate(vectors: list[Floats], labels: Labels, *, groups: list[str] | None = None) -> dict[str, Any]:
    names = [f"{np.random.default_rng(row).integers(1 << 40):x}.jpg" for row in range(len(labels))]
    given = [None if groups is None else {"group": group} for group in groups or names]
    items = [
        FoundItem(name, 1, 1, label=NAMES[label], metadata=metadata)
        for name, label, metadata in zip(names, labels.tolist(), given, strict=True)
    ]
    places = [Place(Path(name), name, sha256=name) for name in names]
    candidates = [Candidate(f"{number}", "model", Path()) for number in range(len(vectors))]
    for candidate, rows in zip(candidates, vectors, strict=True):
        candidate.vectors = rows
    return evaluate_candidates(Images("photos", items, places, Counter()), candidates, ks=[4])[0]


def test_figures_are_those_of_evaluate_over_the_same_queries() -> None:
    report = evaluate(VECTORS, LABELS)
    assert (report["queries"], report["lone_queries"]) == (120, 1)
    for rows, one in zip(VECTORS, report["candidates"], strict=True):
        images = Labelled(rows, LABELS, np.arange(len(rows)))
        plain = score_retrieval(images, images, ks=[1, 4])
        assert {int(k): figure["value"] for k, figure in one["recall"].items()} == plain.recall
        assert tuple(one["recall"]["1"]["interval"]) == bootstrap_interval(plain.hits[1], seed=0)
        assert one["map_at_r"]["value"] == pytest.approx(plain.average_precision.mean())


def test_pairs_count_the_queries_that_each_alone_gets_right() -> None:
    right = []
    for rows in VECTORS:
        products = rows @ rows.T
        np.fill_diagonal(products, -np.inf)
        right.append((LABELS[products.argmax(axis=1)] == LABELS)[:120])
    pairs = evaluate(VECTORS, LABELS)["pairs"]
    assert [(pair["first"], pair["second"]) for pair in pairs] == [("0", "1"), ("0", "2"), ("1", "2")]
    for pair in pairs:
        a, b = right[int(pair["first"])], right[int(pair["second"])]
        assert (pair["only_first_right"], pair["only_second_right"]) == ((a & ~b).sum(), (b & ~a).sum())
        assert (pair["both_right"], pair["both_wrong"]) == ((a & b).sum(), (~a & ~b).sum())
        assert pair["recall_at_1"]["value"] == pytest.approx(b.mean() - a.mean())
    assert (pairs[0]["verdict"], pairs[0]["recall_at_1"]["value"] < 0) == ("worse", True)


def test_given_groups_are_kept_apart_and_drawn_as_wholes() -> None:
    plain = evaluate(VECTORS, LABELS)
    grouped = evaluate(VECTORS, LABELS, groups=[f"group {row // 12}" for row in range(len(LABELS))])
    assert (plain["intervals_over"], grouped["intervals_over"]) == ("queries", "groups")
    assert grouped["groups"]["found_by"] == "the column 'group'"
    for one, other in zip(grouped["candidates"], plain["candidates"], strict=True):
        assert one["recall_at_1_grouped"] is not None
        assert one["recall"]["1"]["value"] == other["recall"]["1"]["value"]
        assert one["recall"]["1"]["interval"] != other["recall"]["1"]["interval"]


def test_few_queries_give_no_clear_verdict() -> None:
    right = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    wrong = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
    (pair,) = evaluate([wrong, right], np.array([0, 0, 1, 1], dtype=np.int64))["pairs"]
    assert (pair["only_second_right"], pair["recall_at_1"]["interval"][0]) == (4, 1.0)
    assert (pair["enough_differ"], pair["verdict"]) == (False, "not clear")
