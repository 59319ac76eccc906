"""The benchmark of precisions and runtimes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.precision import main
from tests.benchmarks.small_datasets import write_dataset


@pytest.mark.slow
def test_every_runtime_runs_what_it_takes_beside_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dataset, out = write_dataset(tmp_path, train=3, test=3, pictures=24, size=48), tmp_path / "out"
    main(["--out", str(out), "--dataset", dataset, "--backbone", "resnet18", "--weights", "none", "--side", "64",
          "--max-recall-drop", "1"])  # fmt: skip
    assert "| onnxruntime | int8 |" in capfd.readouterr().out
    rows = json.loads((out / "precision.json").read_text())["results"]["rows"]
    found = {(row["runtime"], row["precision"]): row for row in rows}
    precisions = ("fp32", "fp16", "bf16", "int8")
    expected = {("torch", "fp32"), *(("onnxruntime", one) for one in precisions)}
    assert found.keys() == expected | {("openvino", one) for one in precisions}
    assert all(row["rate"] > 0 and 0 <= row["recall"] <= 100 for row in rows)
    assert found["onnxruntime", "fp32"]["cosine"] > 0.9999
    assert found["onnxruntime", "int8"]["bytes"] < found["onnxruntime", "fp32"]["bytes"] / 3
