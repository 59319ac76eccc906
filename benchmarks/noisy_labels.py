"""Does the method survive wrong labels? Train classes with uniform noise, test on unseen classes, several seeds.

By default the Tiny-ImageNet protocol of benchmarks/README.md (100 classes x 300 to train, 100 other classes to
test), or with --data clothing the photos of clothes (every other real folder to train, the others to test: a domain
that the backbone has not seen); frozen MobileNetV2, 64-d, features cached once. Prints Recall@K as mean and deviation
over seeds, with the untrained baselines, the seconds of each phase and the peak memory of each whole training.

    python -m benchmarks.noisy_labels --out bench/noisy-labels
    python -m benchmarks.noisy_labels --data clothing --out bench/noisy-clothing
    python -m benchmarks.noisy_labels --train a/ --test b/ --backbone resnet50 --weights imagenet --out bench/own
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.record import Measured, print_machine, run_retrieval, shared_folder, unpack, write_record

METHODS = ("spa", "proxy-anchor")
NO_CLOTHES = ("not-sure", "other", "skip")  # folders of photos that their owners could not name
BASELINES = ("raw", "pca", "pca-whitened")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, cache and record.json")
    parser.add_argument("--data", choices=("tiny-imagenet", "clothing"), default="tiny-imagenet")
    parser.add_argument("--train", type=Path, help="folder of class folders, instead of --data")
    parser.add_argument("--test", type=Path, help="folder of other class folders")
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    parser.add_argument("--noise", type=float, default=0.3, help="share of wrong labels (default 0.3)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--option", action="append", default=[], metavar="--FLAG=VALUE", help="passed on to train")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    train, test = options.train, options.test
    if train is None or test is None:
        prepare = unpack_tiny_imagenet if options.data == "tiny-imagenet" else split_clothing
        train, test = prepare(shared_folder() / "data" / options.data, options.out / "images")
    weights = options.weights or shared_folder() / "weights" / "mobilenet_v2_imagenet.safetensors"
    measured: dict[str, list[Measured]] = {method: [] for method in METHODS}
    for seed in options.seeds:
        for method in METHODS:
            run = options.out / f"run-{method}-{seed}"
            shutil.rmtree(run, ignore_errors=True)
            measured[method].append(
                run_retrieval(
                    "train", train, "--val", test, "--out", run, "--cache", options.out / "cache",
                    "--backbone", options.backbone, "--weights", weights, "--method", method, "--seed", seed,
                    "--label-noise", f"uniform:{options.noise}", "--validate-every", 1000, *options.option,
                )
            )  # fmt: skip
    results = summarise(measured)
    print_machine(options.seeds)
    print_table(results, noise=options.noise)
    write_record(options.out / "record.json", settings=vars(options), results=results)


def unpack_tiny_imagenet(data: Path, images: Path) -> tuple[Path, Path]:
    """Folders of the training and of the test classes."""
    return unpack(data / "train.tar", images / "train"), unpack(data / "test.tar", images / "test")


def split_clothing(data: Path, images: Path) -> tuple[Path, Path]:
    """Folders of links: every other folder of real clothes trains, the others test."""
    names = sorted(path.name for path in data.iterdir() if path.name not in NO_CLOTHES)
    for part, chosen in (("train", names[0::2]), ("test", names[1::2])):
        (images / part).mkdir(parents=True, exist_ok=True)
        for name in chosen:
            link = images / part / name
            if not link.is_symlink():
                link.symlink_to(data / name)
    return images / "train", images / "test"


def summarise(measured: dict[str, list[Measured]]) -> dict[str, Any]:
    """Mean and deviation over seeds of every row, the paired margins, and what the trainings cost."""
    rows = {method: [m.document["val"]["recall"] for m in runs] for method, runs in measured.items()}
    for name in BASELINES:
        rows[name] = [m.document["baselines"][name]["recall"] for m in measured["spa"]]
    margins = [
        100 * (spa["1"] - anchor["1"]) for spa, anchor in zip(rows["spa"], rows["proxy-anchor"], strict=True)
    ]
    return {
        "recall": {name: {k: _spread([100 * r[k] for r in runs]) for k in runs[0]} for name, runs in rows.items()},
        "margin_at_1": _spread(margins),
        "cost": {
            method: [
                {
                    "peak_mib": round(m.peak_mib),
                    "seconds": m.seconds,
                    "phases": {phase: values["seconds"] for phase, values in m.document["phases"].items()},
                }
                for m in runs
            ]
            for method, runs in measured.items()
        },
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def print_table(results: dict[str, Any], *, noise: float) -> None:
    ks = list(results["recall"]["spa"])
    print(f"\n| {noise:.0%} wrong labels, Recall@K in % | " + " | ".join(f"K={k}" for k in ks) + " |")
    print("| --- |" + " --- |" * len(ks))
    for name, row in results["recall"].items():
        cells = (f"{row[k]['mean']:.2f} ± {row[k]['deviation']:.2f}" for k in ks)
        print(f"| {name} | " + " | ".join(cells) + " |")
    margin = results["margin_at_1"]
    print(f"\nspa minus proxy-anchor at K=1: {margin['mean']:.2f} ± {margin['deviation']:.2f} points")
    for method, runs in results["cost"].items():
        for number, run in enumerate(runs):
            phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run["phases"].items())
            print(f"{method}, run {number}: {phases}; peak {run['peak_mib']} MiB")


if __name__ == "__main__":
    main()
