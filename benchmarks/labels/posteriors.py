"""Log-probability of the true class by the posteriors that train, and by one pass of a ridge regression alone.

python -m benchmarks.labels.posteriors --out bench/labels
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.record import print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import DATASETS, load_known_labels
from index.labels.leave_one_out import LeaveOneOut
from index.labels.simulated_noise import estimate_p_error
from index.threads import usable_cores
from training.confidence.confidences import estimate_posteriors


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of features and the record")
    parser.add_argument("--dataset", nargs="+", choices=DATASETS, default=list(DATASETS))
    options = parser.parse_args(arguments)
    out, cases = options.out, [(most, share) for most in (12, 30) for share in (0.0, 0.3, 0.5)]
    print_machine([0])
    rows = [_measure(name, most, share, out) for name in options.dataset for most, share in cases]
    text = format_table(["images that choose", "of a class", "wrong", "one pass", "two passes"], rows)
    print(text)
    write_record(out / "results" / "posteriors.json", settings=vars(options), results={"rows": rows}, text=text)


def _measure(name: str, most: int, share: float, out: Path) -> list[str]:
    known, random = load_known_labels(name, "choose", out, workers=usable_cores()), np.random.default_rng(0)
    order = random.permutation(len(known.right))
    kept = np.concatenate([order[known.right[order] == c][:most] for c in range(len(known.classes))])
    features, right, count = known.features[kept], known.right[kept], len(known.classes)
    others = (right + random.integers(1, count, len(right))) % count
    given = np.where(random.random(len(right)) < share, others, right)
    confidences = LeaveOneOut(features, given, count=count).confidences(np.arange(len(given)))
    one = estimate_p_error(confidences, given)[1].posterior(confidences, given)
    two = estimate_posteriors(torch.from_numpy(features), torch.from_numpy(given), class_count=count, groups=None)
    found = (np.log(q[np.arange(len(right)), right].clip(1e-6)).mean() for q in (one, two.by_class.numpy()))
    return [name, str(most), f"{share:.0%}", *(f"{value:.2f}" for value in found)]


if __name__ == "__main__":
    main()
