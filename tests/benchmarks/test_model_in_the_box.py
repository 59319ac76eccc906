"""The benchmark of the model in the box: a small student is taught, exported, searched and timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import model_in_the_box
from benchmarks.model_in_the_box import main
from index.model.embedder import Embedder
from tests.benchmarks.small_datasets import write_dataset


def test_a_small_student_is_taught_once_and_measured_beside_its_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path, train=3, test=3, pictures=8)
    monkeypatch.setattr(model_in_the_box, "TEACH", (dataset, dataset))
    monkeypatch.setattr(model_in_the_box, "SEARCHED", (dataset,))
    asked = ["--out", str(tmp_path / "out"), "--weights", "none"]
    sizes = ["--side", "32", "--backbone", "shufflenet_v2_x0_5", "--kind-dim", "8", "--picture-dim", "8", "--pictures",
             "8", "--bank", "16", "--epochs", "1", "--block-epochs", "0"]  # fmt: skip
    main([*asked, "--teach", *sizes])
    assert "| student, 8-d |" in capsys.readouterr().out
    assert Embedder(tmp_path / "out" / "box.onnx").contract.widths == {"kind": 8, "picture": 8}
    first = json.loads((tmp_path / "out" / "kind.json").read_text())["results"]
    assert first["seconds"] > 0
    main(asked)
    again = json.loads((tmp_path / "out" / "kind.json").read_text())["results"]
    assert again[dataset] == first[dataset]
