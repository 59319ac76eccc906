"""The share of right labels that verdicts promise, against the true one: simulated crawls with known truth.

A crawl has 60 classes of at most 27 images, and wrong labels of one or more kinds, by `KIND:SHARE` of these images:
`any`, of any other class; `alike`, of one of the five classes that look most alike; `near`, images of other classes of
the same data set with random labels, which show none of the 60; `far`, the same of another data set. Detection reads
features of MobileNetV2. Constants were chosen on the parts `choose`.

    python -m benchmarks.labels.promise --out bench/labels
    python -m benchmarks.labels.promise --out bench/labels --part choose --dataset cars --kind any:.2 --seeds 0
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import KnownLabels, add_options, find_nearest_classes, load_known_labels
from index.labels.decisions import CHANGE, DROP, KEEP, SET_ASIDE
from index.labels.kinds import has_rare_class
from index.labels.label_errors import find_label_errors
from index.labels.verdicts import AT_LEAST_RIGHT, expect_right, give_verdicts, why_no_promise

DATASETS = ("cars", "groceries", "clothing")
FOREIGN = {"cars": "groceries", "groceries": "cars", "clothing": "cars"}
KINDS = (
    *("right", "any:.2", "alike:.2", "near:.05", "near:.2", "far:.05", "far:.2"),
    *("any:.18+near:.05", "any:.1+alike:.1+near:.1"),
)
CLASSES, IMAGES = 60, 27
NONE = -1  # the right label of an image that shows none of the classes
COLUMNS = (
    *("dataset", "kind", "seed", "images", "wrong", "estimate", "of no class", "estimated so"),
    *("changed", "right then", "expected", "set aside", "dropped", "of no class"),
    *("kept", "right", "expected", "from", "to", "promised", "look-alikes found"),
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, DATASETS, KINDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the crawls (default: 0 1 2)")
    options = parser.parse_args(arguments)
    with ending_in_words("promise"):
        print_machine(options.seeds)
        rows: list[list[Any]] = []
        for dataset in options.dataset:
            known, foreign = (
                load_known_labels(name, options.part, options.out / "known", workers=options.workers)
                for name in (dataset, FOREIGN[dataset])
            )
            for kind in options.kind:
                for seed in options.seeds:
                    crawl = make_crawl(known, kind, foreign=foreign.features, seed=seed)
                    rows.append([dataset, kind, seed, *measure(*crawl)])
                    print(*rows[-1], file=sys.stderr, flush=True)
        text = format_table(COLUMNS, [[str(cell) for cell in row] for row in rows])
        print(f"\n{text}")
        write_record(
            options.out / f"promise-{options.part}.json", settings=vars(options), results={"rows": rows}, text=text
        )


def make_crawl(
    known: KnownLabels, kind: str, *, foreign: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, F) features, (N,) int64 labels and (N,) right ones, `NONE` of images of no class."""
    random, count = np.random.default_rng(seed), len(known.classes)
    classes = np.sort(random.permutation(count)[: min(CLASSES, int(0.6 * count))])
    rows = np.concatenate([random.permutation(np.flatnonzero(known.right == label))[:IMAGES] for label in classes])
    features, right = [known.features[rows]], np.searchsorted(classes, known.right[rows])
    labels, free = right.copy(), random.permutation(len(rows))
    nearest, others = find_nearest_classes(features[0], right), np.flatnonzero(~np.isin(known.right, classes))
    for part in kind.split("+"):
        how, _, share = part.partition(":")
        images = round(float(share or 0) * len(rows))
        if how in ("any", "alike"):
            wrong, free = free[:images], free[images:]
            drawn = (right[wrong] + random.integers(1, len(classes), images)) % len(classes)
            alike = nearest[right[wrong], random.integers(0, nearest.shape[1], images)]
            labels[wrong] = drawn if how == "any" else alike
        elif images:
            pool = known.features[others] if how == "near" else foreign
            features.append(pool[random.choice(len(pool), min(images, len(pool)), replace=False)])
            labels = np.concatenate([labels, random.integers(0, len(classes), len(features[-1]))])
    none = np.full(len(labels) - len(right), NONE)
    return np.concatenate(features), labels.astype(np.int64), np.concatenate([right, none])


def measure(features: np.ndarray, labels: np.ndarray, right: np.ndarray) -> list[Any]:
    """The cells of `COLUMNS` from `images` on."""
    alone, wrong, classes = np.arange(len(labels)), labels != right, int(labels.max()) + 1
    errors, rare = find_label_errors(features, labels, count=classes), has_rare_class(labels, alone)
    made, new = give_verdicts(errors, labels, groups=alone, rare=rare, at_least_right=AT_LEAST_RIGHT)
    verdicts = np.array(made)
    changed, dropped = verdicts == CHANGE, verdicts == DROP
    kept, is_right = changed | (verdicts == KEEP), np.where(changed, new == right, ~wrong)
    p_kept = np.where(changed, errors.p_suggested, 1 - errors.p_error)
    expected, found = expect_right(int(kept.sum()), float(p_kept[kept].sum())), errors.calibration
    no_promise = why_no_promise(
        labels=len(labels), look_alikes=found.look_alikes, classes=classes, is_lower_bound=False
    )

    def share(of: np.ndarray) -> float:
        return round(float(of.mean()), 3) if len(of) else 0.0

    return [
        *(len(labels), share(wrong), share(errors.p_error), share(right[wrong] == NONE), round(found.none_share, 3)),
        *(int(changed.sum()), share(is_right[changed]), share(p_kept[changed])),
        *(int((verdicts == SET_ASIDE).sum()), int(dropped.sum()), int((right[dropped] == NONE).sum())),
        *(
            share(kept),
            share(is_right[kept]),
            *(round(one, 3) for one in (expected.share, expected.low, expected.high)),
        ),
        *(no_promise is None, round(found.look_alikes or 0.0, 2)),
    ]


if __name__ == "__main__":
    main()
