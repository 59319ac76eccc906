"""The benchmark of cleaning before a network trains: three trainings that differ in their labels only."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.network.clean_and_retrain import main
from tests.benchmarks.small_datasets import write_dataset


def test_the_same_training_on_labels_as_given_cleaned_and_right(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset, out = write_dataset(tmp_path, train=3, test=2, pictures=8, size=48), tmp_path / "out"
    main(["--out", str(out), "--dataset", dataset, "--noise", "uniform:0.2", "--weights", "none", "--unfreeze",
          "last-1", "--epochs", "1", "--width", "4"])  # fmt: skip
    assert "cleaning gains" in capfd.readouterr().out
    row = json.loads((out / "results" / "clean_and_retrain.json").read_text())["results"]["rows"][0]
    assert 0 <= row["relabelled"] + row["left_out"] <= 1
    runs = {run.name: json.loads((run / "config.json").read_text()) for run in (out / "runs").iterdir()}
    noises = {
        name.partition("seed0")[2]: run["config"]["data"]["label_noise"]
        for name, run in runs.items()
        if "uniform" in name
    }
    assert len(runs) == 3
    assert noises["_cleaned"] is None
    assert noises[""] is not None
    with next((out / "data").glob("*_cleaned.csv")).open(newline="") as file:
        kept = len(list(csv.DictReader(file)))
    assert kept == round(3 * 8 * (1 - row["left_out"]))
