"""Whole networks in training, as `retrieval train --unfreeze all` does it: their speed, what waits, what is found."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.record import find_weights
from benchmarks.common.tables import format_table
from benchmarks.gpu.gpu_limits import Limits
from benchmarks.network.train_cells import write_records
from benchmarks.noise.splits import list_split
from retrieval_app import train
from training.run.phases import NETWORK, EpochReport, Watcher

WEIGHTLESS = "none"


def measure_training(_: Limits, options: argparse.Namespace) -> dict[str, Any]:
    """Every network on every dataset; the test part is searched once, by what ships, and nothing is chosen by it."""
    rows = []
    for dataset in options.dataset:
        split = list_split(dataset, work=options.out / "images")
        folder = options.out / "training" / dataset.replace(":", "_").replace("/", "_")
        train_part, test_part = (
            write_records(records, folder / f"{name}.csv")
            for name, records in (("train", split.train), ("test", split.test))
        )
        for network in options.network:
            rows.append(
                {
                    "dataset": dataset,
                    **_train(network, train_part, test_part, folder=folder, options=options),
                }
            )
    return {"rows": rows, "precision": options.precision}


def _train(
    network: str, train_part: Path, test_part: Path, *, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    name, _, weights = network.partition("=")
    epochs: list[EpochReport] = []
    run = folder / name
    shutil.rmtree(run, ignore_errors=True)
    report = train(
        train_part, run, val=test_part, cache=options.out / "cache", device=options.computes_on.type,
        weights=weights or (find_weights() if name == "mobilenet_v2" else WEIGHTLESS), backbone=name,
        precision=options.precision, workers=options.workers, watcher=Watcher(on_epoch=epochs.append),
        trial=False, seed=options.seed, resize=options.resize, crop=options.crop, embedding_dim=options.width,
        max_per_class=options.max_per_class, unfreeze="all", network_epochs=options.epochs,
        network_batch_size=options.network_batch, network_crop=options.network_crop,
    )  # fmt: skip
    return summarise(report, [epoch for epoch in epochs if epoch.phase == NETWORK], network=name)


def summarise(report: Mapping[str, Any], epochs: Sequence[EpochReport], *, network: str) -> dict[str, Any]:
    """What a run's report and the epochs of its network say; the share that waits is of the seconds that train."""
    stage = report["network"]
    trained = [stage["trained_on"] / epoch.images_per_second for epoch in epochs]
    return {
        "network": network, "device": stage["device"], "precision": stage["precision"],
        "images_per_s": stage["trained_on"] * len(epochs) / sum(trained),
        "epoch_s": sum(epoch.seconds for epoch in epochs) / len(epochs),
        "trained_s": sum(trained), "waits": stage["waited_s"] / sum(trained), "ships": stage["ships"],
        "recall_at_1": report["val"]["recall"]["1"], "trained_on": stage["trained_on"], "epochs": len(epochs),
        "baselines": report["baselines"], "seconds": report["seconds"],
        "phases": {phase: told["seconds"] for phase, told in report["phases"].items()},
    }  # fmt: skip


def tabulate_training(results: Mapping[str, Any]) -> str:
    """A row for each dataset and network."""
    rows = [
        [
            row["dataset"], row["network"], row["precision"], f"{row['images_per_s']:.0f}", f"{row['epoch_s']:.1f}",
            f"{100 * row['waits']:.0f} %", f"{row['epochs']}", f"{row['seconds']:.0f}",
            f"{100 * row['recall_at_1']:.2f}", "network" if row["ships"] else "frozen",
        ]
        for row in results["rows"]
    ]  # fmt: skip
    head = ["dataset", "network", "precision", "images/s in training", "seconds an epoch, judging included",
            "waits for images", "epochs", "seconds of the run", "Recall@1, unseen classes", "ships"]  # fmt: skip
    return format_table(head, rows)
