"""Looks that a certificate needs, how often it is false, and what the looks teach: simulated people know the truth.

Each audit draws images until "at most so many labels are wrong" is proved: with the probabilities of label errors as
they are, equal ones (uniform sampling), and reversed ones, the worst that a model can do. It is false where more are
left. People who err answer 5 % of the questions wrongly, and so leave wrong labels or make some. The second table has
the share of wrong labels among those nobody looked at, as estimated before and after some looks.

    python -m benchmarks.labels.certificate --out bench/labels
    python -m benchmarks.labels.certificate --out bench/labels --dataset cars --kind any:0.05 --audits 20
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import PEOPLE, add_options, load_known_labels, mistake
from index.labels.certificate import LabelSample
from index.labels.label_errors import find_label_errors
from index.labels.recalibration import Recalibration
from retrieval_app.review.certificates import AT_A_TIME, spend

KINDS = ("right", "any:0.05", "alike:0.05", "any:0.2", *PEOPLE)
WAYS = ("as they are", "uniform", "reversed", "people err")
ERRS = 0.05  # share of answers
LOOKS = (0, 60, 300)
HEAD = (
    *("dataset", "labels", "wrong", "at most", "looks", "uniform", "ratio"),
    *("false", "reversed: false", "people err: false"),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ("cifar-n", "cars", "groceries"), KINDS)
    parser.add_argument("--at-most", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--audits", type=int, default=100, help="of each row and way (default: 100)")
    options = parser.parse_args(arguments)
    with ending_in_words("certificate"):
        print_machine([0])
        rows = []
        for dataset in options.dataset:
            known = load_known_labels(dataset, options.part, options.out / "known", workers=options.workers)
            for kind in (one for one in options.kind if one in known.by_people or one not in PEOPLE):
                images, labels = mistake(known, kind, seed=0)
                wrong = labels != known.right[images]
                errors = find_label_errors(known.features[images], labels, count=len(known.classes))
                for share in options.at_most:
                    row = {"dataset": dataset, "kind": kind, "wrong": float(wrong.mean()), "at_most": share}
                    row |= {way: run_audits(errors.p_error, wrong, way, share, options.audits) for way in WAYS}
                    if share == options.at_most[0]:
                        row |= {f"after {n}": estimate_shares(errors.p_error, wrong, n, options.audits) for n in LOOKS}
                    rows.append(row)
                    print(row, file=sys.stderr, flush=True)
        shares = [row for row in rows if row["at_most"] == options.at_most[0]]
        head = ["dataset", "labels"] + [
            f"{name}, {n} looks" for n in LOOKS for name in ("true", "said", "width", "held")
        ]
        tables = (HEAD, [format_row(row) for row in rows]), (head, [format_shares(row) for row in shares])
        text = "\n\n".join(format_table(*table) for table in tables)
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
            sample.draw(AT_A_TIME * max(1, len(sample.draws) // 500), most=most, random=random)
            sample.answer(answers)
        seen, after = np.array([draw.position for draw in sample.draws]), wrong.copy()
        after[seen] = answers[seen] != wrong[seen]  # a wrong answer leaves a wrong label, whatever it was before
        looks.append(len(seen))
        false += int(after.sum()) > most
    return {"looks": float(np.mean(looks)), "false": false / audits}


def estimate_shares(p_error: np.ndarray, wrong: np.ndarray, looks: int, audits: int) -> dict[str, float]:
    """Means of the estimated and the true share of the rest after so many looks, and of intervals."""
    found = []
    for seed in range(audits):
        sample = LabelSample(p_error, alpha=0.05)
        some, random = min(looks, len(wrong) // 2), np.random.default_rng(seed)
        drawn = sample.draw(some, most=len(wrong) // 50, random=random) if looks else []
        seen = np.array([draw.position for draw in drawn], dtype=np.int64)
        fitted, rest = Recalibration.fit(p_error[seen], wrong[seen]), np.setdiff1d(np.arange(len(wrong)), seen)
        share, low, high = fitted.estimate_share(p_error[rest])
        rate = wrong[rest].mean()
        found.append((share, rate, high - low, low <= rate <= high))
    return dict(zip(("estimate", "true", "width", "held"), np.mean(found, axis=0).tolist(), strict=True))


def format_shares(row: dict[str, Any]) -> list[str]:
    cells = [row["dataset"], row["kind"]]
    for looks in LOOKS:
        one = row[f"after {looks}"]
        cells += [f"{100 * one[name]:.1f}%" for name in ("true", "estimate", "width")]
        cells.append(f"{100 * one['held']:.0f}%")
    return cells


def format_row(row: dict[str, Any]) -> list[str]:
    ours, uniform = row["as they are"]["looks"], row["uniform"]["looks"]
    false = [f"{100 * row[way]['false']:.0f}%" for way in ("as they are", "reversed", "people err")]
    shares = [f"{100 * row[name]:.1f}%" for name in ("wrong", "at_most")]
    return [row["dataset"], row["kind"], *shares, f"{ours:,.0f}", f"{uniform:,.0f}", f"{ours / uniform:.2f}", *false]


if __name__ == "__main__":
    main()
