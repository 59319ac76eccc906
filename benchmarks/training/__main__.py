"""What one training costs, and what it loses by caching features: whole `retrieval train` runs on Tiny-ImageNet.

    python -m benchmarks.training --out bench/training
    python -m benchmarks.training --out bench/live --features cached:1 cached:8 live --max-per-class 20 --epochs 10 \\
        --lr 1e-3 --methods spa proxy-anchor
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from benchmarks.common.record import (
    find_weights,
    print_machine,
    run_retrieval,
    unpack_tiny_imagenet,
    write_record,
)
from benchmarks.common.tables import format_table


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, cache and record.json")
    parser.add_argument("--features", nargs="+", default=["cached:1"], help="cached:V or live (default cached:1)")
    parser.add_argument("--methods", nargs="+", default=["spa"])
    parser.add_argument("--noise", default="uniform:0.3")
    parser.add_argument("--max-per-class", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=40, help="of phase 2")
    parser.add_argument("--lr", type=float, default=1e-4, help="of confidence module and head")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    train, test = unpack_tiny_imagenet(options.out / "images")
    results, rows = [], []
    for features in options.features:
        for method in options.methods:
            run = options.out / f"run-{method}-{features.replace(':', '-')}"
            shutil.rmtree(run, ignore_errors=True)
            measured = run_retrieval(
                "train", train, "--val", test, "--out", run, "--cache", options.out / "cache",
                "--backbone", "mobilenet_v2", "--weights", find_weights(),
                "--method", method, "--features", features, "--label-noise", options.noise,
                "--max-per-class", options.max_per_class, "--seed", options.seed, "--validate-every", 1000,
                "--epochs", options.epochs, "--lr", options.lr,
            )  # fmt: skip
            phases = {name: phase["seconds"] for name, phase in measured.document["phases"].items()}
            results.append({
                "features": features, "method": method, "recall_at_1": measured.document["val"]["recall"]["1"],
                "images": measured.document["images"], "seconds": measured.seconds, "phases": phases,
                "peak_mib": round(measured.peak_mib),
            })  # fmt: skip
            told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in phases.items())
            recall = f"{100 * results[-1]['recall_at_1']:.2f}"
            rows.append((features, method, recall, told, str(results[-1]["peak_mib"])))
    print_machine([options.seed])
    print("\n" + format_table(["features", "method", "Recall@1", "seconds by phase", "peak MiB"], rows))
    write_record(options.out / "record.json", settings=vars(options), results={"runs": results})


if __name__ == "__main__":
    main()
