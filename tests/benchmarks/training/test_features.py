"""The benchmark of runtimes that compute features: a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.training.features import draw, main
from tests.photos import KINDS, write_photos


def test_photos_are_drawn_by_the_seed_in_their_order(tmp_path: Path) -> None:
    write_photos(tmp_path, kinds=KINDS[:2], pictures_per_kind=5, seed=0, size=16)
    drawn = [record.path for record in draw(tmp_path, 6, seed=1)]
    assert (len(drawn), drawn) == (6, sorted(drawn))
    assert drawn == [record.path for record in draw(tmp_path, 6, seed=1)]
    assert drawn != [record.path for record in draw(tmp_path, 6, seed=2)]
    assert len(draw(tmp_path, 99, seed=1)) == 10


@pytest.mark.slow  # it writes graphs
def test_every_runtime_is_timed_beside_torch_with_its_recall(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos", kinds=KINDS[:3], pictures_per_kind=6, seed=0, size=48)
    out = tmp_path / "out"
    main(["--out", str(out), "--photos", str(tmp_path / "photos"), "--timed", "8", "--rounds", "1", "--side", "64",
          "--backbone", "squeezenet1_1", "--weights", "none"])  # fmt: skip
    assert "| onnxruntime | float32 |" in capfd.readouterr().out
    results = json.loads((out / "record.json").read_text())["results"]
    found = {(row["runtime"], row["precision"]): row for row in results["rows"]}
    runtimes = ("torch", "onnxruntime", "openvino")
    assert found.keys() >= {("torch", "bfloat16"), *((name, "float32") for name in runtimes)}
    assert results["graph_seconds"] > 0
    for row in found.values():
        assert (row["photos"], row["timed"]) == (18, 8)
        assert row["rate"] > 0
        assert row["rate_from_files"] > 0
        assert 0 <= row["recall_at_1"] <= 1
        assert row["cosine"] > (0.9999 if row["precision"] == "float32" else 0.9)
    assert found["torch", "float32"]["of_torch"] == 1
