"""How many looks does it take until the wrong labels are fixed, if what was decided teaches the judge?

A reviewer who knows the truth, and errs in 3 % of the decisions, is shown labels in the order of a list, and decides:
the label is kept, or becomes the right one. `again`: after every so many decisions all labels that nobody has looked at
are judged anew, with those decided believed. `once`: in the order of the first judgement. `random`: in any. And after
half as many looks as n labels were wrong, as many, and half more: how many wrong ones are said to be left, and are.
`cleanlab`: in the order of its self-confidence, of the same cross-validated regression as in `chances`, C = 10.

    python -m benchmarks.labels.review_loop --out bench/labels
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from cleanlab.rank import get_label_quality_scores
from sklearn.preprocessing import normalize

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import DATASETS, KnownLabels, load_known_labels, mistake
from benchmarks.labels.peers import cross_validate
from index.labels.judge import Judgement, Settled, judge_labels

KINDS, ROUNDS, ERRORS, FIXED = ("any:0.05", "any:0.2", "alike:0.05", "alike:0.2"), 10, 0.03, 0.9
PARTS = (0.5, 1.0, 1.5)
CLEANLAB_STRENGTH = 10.0
WAYS = ("again", "once", "cleanlab", "random")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for features, records and tables")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), help=f"default: {' '.join(DATASETS)}")
    parser.add_argument("--kind", nargs="+", default=list(KINDS), help=f"default: {' '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of mistakes (default: 0)")
    options = parser.parse_args(arguments)
    with ending_in_words("review_loop"):
        print_machine(options.seeds)
        rows = []
        for dataset in options.dataset:
            known = load_known_labels(dataset, "report", options.out / "known", workers=2)
            for kind in options.kind:
                for seed in options.seeds:
                    looks = {way: review(known, kind, seed=seed, way=way) for way in WAYS}
                    left = reckon_left(known, kind, seed=seed)
                    rows.append({"dataset": dataset, "kind": kind, "seed": seed, **looks, "left": left})
                    print(format_rows(rows[-1:]), flush=True)
        text = format_rows(rows)
        print(f"\n{text}")
        write_record(options.out / "review_loop.json", settings=vars(options), results={"rows": rows}, text=text)


def format_rows(rows: list[dict[str, Any]]) -> str:
    def describe(row: dict[str, Any]) -> list[str]:
        left = [f"{said:.0f} / {true}" for said, true in row["left"]]
        return [row["dataset"], row["kind"], *(f"{row[way]:.2f}" for way in WAYS), *left]

    head = ("dataset", "labels", *WAYS, *(f"left after {part:g} n looks, said / true" for part in PARTS))
    return format_table(head, map(describe, rows))


def review(known: KnownLabels, kind: str, *, seed: int, way: str) -> float:
    """Looks until nine tenths of the labels that were wrong are right, for each of these nine tenths."""
    rows, given = mistake(known, kind, seed=seed)
    right, count = known.right[rows], len(known.classes)
    random = np.random.default_rng(seed)
    labels, was_wrong, seen = given.copy(), given != right, np.zeros(len(given), dtype=bool)
    needed = int(np.ceil(FIXED * was_wrong.sum()))
    step = max(1, int(1.3 * needed) // ROUNDS)
    first = judge_labels(known.features[rows], given, count=count)
    order = random.permutation(len(given)) if way == "random" else _order(first, seen)
    if way == "cleanlab":
        probabilities = cross_validate(normalize(known.features[rows]), given, CLEANLAB_STRENGTH)
        order = np.argsort(get_label_quality_scores(given, probabilities), kind="stable")
    looks = 0
    while len(order):
        batch = order if way != "again" else order[:step]
        for row in batch.tolist():
            looks += 1
            seen[row] = True
            labels[row] = right[row] if random.random() >= ERRORS else (right[row] + 1) % count
            if int((labels == right)[was_wrong].sum()) >= needed:
                return looks / needed
        if way != "again":
            break
        settled = Settled(seen, first.chances)
        order = _order(judge_labels(known.features[rows], labels, count=count, settled=settled), seen)
    return float("inf")


def reckon_left(known: KnownLabels, kind: str, *, seed: int) -> list[tuple[float, int]]:
    """(said, true) wrong labels among those that nobody has looked at, after each of `PARTS`."""
    rows, given = mistake(known, kind, seed=seed)
    right, count = known.right[rows], len(known.classes)
    first, random = judge_labels(known.features[rows], given, count=count), np.random.default_rng(seed)
    errs = random.random(len(given)) < ERRORS
    found = []
    for part in PARTS:
        seen = np.zeros(len(given), dtype=bool)
        seen[_order(first, seen)[: int(part * (given != right).sum())]] = True
        labels = np.where(seen, np.where(errs, (right + 1) % count, right), given)
        settled = Settled(seen, first.chances)
        judged = judge_labels(known.features[rows], labels, count=count, settled=settled)
        found.append((float(judged.wrong[~seen].sum()), int((given != right)[~seen].sum())))
    return found


def _order(judged: Judgement, seen: np.ndarray) -> np.ndarray:
    """Rows that nobody has looked at, the most suspicious first."""
    order = np.lexsort((judged.own, -judged.wrong))
    return order[~seen[order]]


if __name__ == "__main__":
    main()
