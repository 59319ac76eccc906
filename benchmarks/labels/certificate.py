"""Looks that a certificate needs, and how often it is false, by simulated people who know the right labels.

Each audit draws images until "at most so many labels are wrong" is proved: with the probabilities of label errors as
they are, equal ones (uniform sampling), and reversed ones, the worst that a model can do. It is false where more are
left. People who err answer 5 % of the questions wrongly, and so leave wrong labels or make some.

    python -m benchmarks.labels.certificate --out bench/labels
    python -m benchmarks.labels.certificate --out bench/labels --dataset cars --kind any:0.05 --audits 20
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import PARTS, load_known_labels, mistake
from index.labels.certificate import LabelSample
from index.labels.label_errors import find_label_errors
from retrieval_app.review.certificates import AT_A_TIME, spend

KINDS = ("right", "any:0.05", "alike:0.05", "any:0.2", "aggre", "random1", "worse")
WAYS = ("as they are", "uniform", "reversed", "people err")
ERRS = 0.05  # share of answers
HEAD = (
    "dataset",
    "labels",
    "wrong",
    "at most",
    "looks",
    "uniform",
    "ratio",
    "false",
    "reversed: false",
    "people err: false",
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for features and the table")
    parser.add_argument("--dataset", nargs="+", default=["cifar-n", "cars", "groceries"])
    parser.add_argument("--part", choices=PARTS, default="report")
    parser.add_argument("--kind", nargs="+", default=list(KINDS), help=f"default: {' '.join(KINDS)}")
    parser.add_argument("--at-most", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--audits", type=int, default=100, help="of each row and way (default: 100)")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    with ending_in_words("certificate"):
        print_machine([0])
        rows = []
        for dataset in options.dataset:
            known = load_known_labels(dataset, options.part, options.out / "known", workers=options.workers)
            for kind in (
                one for one in options.kind if one in known.by_people or one not in ("aggre", "random1", "worse")
            ):
                images, labels = mistake(known, kind, seed=0)
                wrong = labels != known.right[images]
                errors = find_label_errors(known.features[images], labels, count=len(known.classes))
                for share in options.at_most:
                    row = {"dataset": dataset, "kind": kind, "wrong": float(wrong.mean()), "at_most": share}
                    row |= {way: run_audits(errors.p_error, wrong, way, share, options.audits) for way in WAYS}
                    rows.append(row)
                    print(row, file=sys.stderr, flush=True)
        text = format_table(HEAD, [format_row(row) for row in rows])
        print(f"\n{text}")
        write_record(options.out / "certificate.json", settings=vars(options), results={"rows": rows}, text=text)


def run_audits(p_error: np.ndarray, wrong: np.ndarray, way: str, at_most: float, audits: int) -> dict[str, float]:
    """Mean looks of audits at 95 % confidence, and the share of them that certify too much."""
    most, looks, false = int(at_most * len(wrong)), [], 0
    shown = {"uniform": np.full(len(wrong), p_error.mean()), "reversed": p_error.max() - p_error}.get(way, p_error)
    for seed in range(audits):
        random = np.random.default_rng(seed)
        answers = wrong ^ (random.random(len(wrong)) < ERRS) if way == "people err" else wrong
        sample = LabelSample(shown, alpha=spend(0.05, attempt=1))
        while not sample.proves(most):
            sample.draw(AT_A_TIME * max(1, len(sample.looks) // 500), most=most, random=random)
            sample.answer(answers)
        seen, after = np.array([look.place for look in sample.looks]), wrong.copy()
        after[seen] = answers[seen] != wrong[seen]  # a wrong answer leaves a wrong label, whatever it was before
        looks.append(len(seen))
        false += int(after.sum()) > most
    return {"looks": float(np.mean(looks)), "false": false / audits}


def format_row(row: dict[str, Any]) -> list[str]:
    ours, uniform = row["as they are"]["looks"], row["uniform"]["looks"]
    false = [f"{100 * row[way]['false']:.0f}%" for way in ("as they are", "reversed", "people err")]
    shares = [f"{100 * row[name]:.1f}%" for name in ("wrong", "at_most")]
    return [row["dataset"], row["kind"], *shares, f"{ours:,.0f}", f"{uniform:,.0f}", f"{ours / uniform:.2f}", *false]


if __name__ == "__main__":
    main()
