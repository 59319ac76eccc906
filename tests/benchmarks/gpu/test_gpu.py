"""The benchmarks of a GPU, tried small on the processor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.gpu_limits import Limits, time_runs
from benchmarks.gpu.gpu_losses import METHODS, STEP
from benchmarks.gpu.gpu_rates import STAND_IN
from benchmarks.gpu.gpu_training import summarise
from index.errors import MissingDependencyError
from tests.benchmarks.small_datasets import write_dataset
from training.run.phases import EpochReport

SMALL = ("--device", "cpu", "--side", "64", "--copied-mib", "1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.gpu_limits._SECONDS", 0.0)
    monkeypatch.setattr(time_runs, "__kwdefaults__", {"seconds": 0.0})


def _run(out: Path, part: str, *options: str) -> dict[str, Any]:
    main(["--out", str(out), "--part", part, *SMALL, *options])
    record = json.loads((out / f"record-{part}.json").read_text())
    assert record["settings"]["device"]["name"] == "CPU"
    assert record["machine"]["versions"]["torch"]
    assert record["settings"]["seed"] == 0
    results: dict[str, Any] = record["results"]
    return results


def test_the_limits_are_rates_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = _run(tmp_path, "limits")
    assert results["bytes_per_s"] > 0
    assert set(results["flops_per_s"]) == {"float32", "tf32", "bfloat16"}
    assert "name CPU" in capsys.readouterr().out


def test_no_work_is_quicker_than_its_bytes_and_its_operations() -> None:
    limits = Limits(100.0, {"float32": 10.0})
    assert limits.floor_s(size_bytes=200, flops=10, number_format="float32") == 2
    assert limits.floor_s(size_bytes=100, flops=50, number_format="float32") == 5


def test_every_loss_is_timed_and_compared_with_float64(tmp_path: Path) -> None:
    results = _run(tmp_path, "losses", "--classes", "300", "--batch", "12", "--width", "16")
    assert [row["method"] for row in results["rows"]] == [name for name in METHODS for _ in range(2)] + [STEP]
    for row in results["rows"][:-1]:
        assert row["seconds"] > 0
        assert row["floor_s"] > 0
        assert row["error"] < 1e-4
    assert "300 classes, batch 12, 16-d" in (tmp_path / "table-losses.md").read_text()


def test_networks_and_the_model_in_the_box_are_timed(tmp_path: Path) -> None:
    sizes = ("--network", "squeezenet1_1", "--crop", "32", "--embedding-batch", "2")
    rows = _run(tmp_path, "embedding", *sizes)["rows"]
    assert [row["what"] for row in rows[:2]] == ["torch, squeezenet1_1"] * 2
    assert {row["precision"] for row in rows[:2]} == {"float32", "bfloat16"}
    assert "CPU" in rows[2]["what"]
    assert all(row["images_per_s"] > 0 for row in rows)
    assert all(row["of_arithmetic"] > 0 for row in rows[:2])


def test_engines_find_the_same_and_what_is_missing_is_said(tmp_path: Path) -> None:
    results = _run(tmp_path, "search", "--vectors", "500", "--width", "16", "--queries", "1", "20")
    assert [row["queries"] for row in results["rows"]] == [1, 20] * (len(results["rows"]) // 2)
    assert results["rows"][-1]["engine"] == STAND_IN
    assert all(row["agrees"] == 1 for row in results["rows"])
    if not torch.cuda.is_available():
        assert "Not run: faiss on a GPU" in (tmp_path / "table-search.md").read_text()


def test_without_faiss_the_limit_is_still_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def miss() -> None:
        raise MissingDependencyError(package="faiss", extra="cpu", purpose="searching")

    monkeypatch.setattr("benchmarks.gpu.gpu_rates.import_faiss", miss)
    results = _run(tmp_path, "search", "--vectors", "500", "--width", "16", "--queries", "20")
    assert [row["engine"] for row in results["rows"]] == [STAND_IN]
    assert results["not_run"] == ["faiss on a GPU: it is not installed"]


def test_a_whole_network_trains_and_its_run_says_what_waited(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, train=4, test=2, pictures=6, size=48)
    small = (
        "--network",
        "mobilenet_v3_small",
        "--resize",
        "40",
        "--crop",
        "32",
        "--network-crop",
        "32",
        "--epochs",
        "1",
    )
    (row,) = _run(
        tmp_path / "out", "training", "--dataset", dataset, *small, "--width", "8", "--network-batch", "8"
    )["rows"]
    assert (row["device"], row["epochs"]) == ("CPU", 1)
    assert row["images_per_s"] > 0
    assert 0 < row["waits"] < 1
    assert 0 <= row["recall_at_1"] <= 1


def test_rates_are_of_all_epochs_and_waiting_is_a_share_of_the_seconds_that_train() -> None:
    epochs = [
        EpochReport("network", n, 2, loss=1.0, seconds=s, images_per_second=r)
        for n, s, r in ((1, 5.0, 50.0), (2, 3.0, 100.0))
    ]
    report = {
        "network": {"trained_on": 200, "waited_s": 1.5, "device": "CPU", "precision": "float32", "ships": True},
        "val": {"recall": {"1": 0.5}}, "baselines": {}, "seconds": 9.0, "phases": {"network": {"seconds": 8.0}},
    }  # fmt: skip
    found = summarise(report, epochs, network="any")
    assert math.isclose(found["images_per_s"], 400 / 6)
    assert math.isclose(found["waits"], 0.25)
    assert found["epoch_s"] == 4
