"""The roofline on the tiny model: what it counts, what it measures, and what it says of a stage that did not run."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from benchmarks.roofline.__main__ import judge_serving, main
from benchmarks.roofline.limits import measure_gemm
from benchmarks.roofline.operations import count_work
from index.errors import InputError


def write_convolution(path: Path, *, has_shape: bool = True) -> Path:
    """5 filters of 3 x 3 over (batch, 2, 8, 8)."""
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [5, 2, 3, 3], [0.5] * 90)
    sides = ["batch", 2, 8, 8] if has_shape else ["batch", 2, "height", "width"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "weight"], ["found"])], "convolution",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("found", TensorProto.FLOAT, None)], [weight],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), path)
    return path


def test_operations_and_bytes_of_a_convolution_are_counted(tmp_path: Path) -> None:
    path = write_convolution(tmp_path / "model.onnx")
    work = count_work(path, batch=4, precision="float32")
    outputs = 4 * 5 * 6 * 6
    assert work.operations == 2 * outputs * 2 * 3 * 3
    numbers = 4 * 2 * 8 * 8 + 5 * 2 * 3 * 3 + outputs
    assert work.bytes_moved == 4 * numbers
    assert count_work(path, batch=4, precision="int8").bytes_moved == numbers


def test_a_layer_without_a_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.onnx: no shape of images, of Conv"):
        count_work(write_convolution(tmp_path / "model.onnx", has_shape=False), batch=1, precision="float32")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_products_have_a_rate(precision: str) -> None:
    found = measure_gemm(precision, seconds=0.01, sides=(16, 32))
    assert found["side"] in (16, 32)
    assert found["operations_per_second"] > 0


def test_uploads_stand_beside_what_their_own_run_allowed(tmp_path: Path) -> None:
    cells = {"by upload": {"8": {"per_second": {"median": 10.0}}, "32": {"per_second": {"median": 30.0}}}}
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"results": {"cells": cells, "bound": 40.0}}))
    assert judge_serving(record)["of_limit"] == pytest.approx(0.75)
    assert judge_serving(None)["limited_by"] == "not run"


def test_all_stages_are_measured_and_drawn(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(3):
        Image.effect_noise((80, 60), 40 + number).convert("RGB").save(photos / f"{number}.jpg")
    main(["--out", str(tmp_path), "--photos", str(photos), "--model", str(tiny_model), "--images", "3",
          "--vectors", "200", "--width", "8", "--array-mib", "1", "--seconds", "0.01", "--rounds", "2"])  # fmt: skip
    results = json.loads((tmp_path / "record.json").read_text())["results"]
    stages = {row["stage"]: row for row in results["stages"]}
    assert list(stages) == [
        "read", "decode", "resize", "index search", f"model: {tiny_model.stem}", "serve upload",
    ]  # fmt: skip
    for name, row in stages.items():
        assert (row["rate"] is None) == (name == "serve upload")
        if row["rate"] is not None:
            assert row["of_limit"] == pytest.approx(row["rate"] / row["limit"])
    assert all(len(turns) == 2 for turns in results["turns"].values())
    assert "| serve upload | not run |" in capsys.readouterr().out
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
