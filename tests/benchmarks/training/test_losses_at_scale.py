"""The contestants of the losses at scale compute the same, and the table says how they compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.training.loss_contestants import PROXY_ANCHOR, SMOOTH, STEPS, measure_loss, measure_step
from benchmarks.training.losses_at_scale import compare, parse_options, summarise, tabulate

SIZES = {"batch": 12, "classes": 90, "width": 6, "seed": 3, "repeats": 1}


@pytest.mark.parametrize(("part", "contestants"), [("proxy-anchor", PROXY_ANCHOR), ("smooth", SMOOTH)])
def test_all_contestants_find_the_same_value_and_gradients(
    part: str, contestants: dict[str, Any], tmp_path: Path
) -> None:
    rows = {}
    for place, (name, loss) in enumerate(contestants.items()):
        path = tmp_path / f"{place}.npz"
        run = measure_loss(loss, {"part": part, "gradients": str(path), **SIZES})
        rows[name] = {**summarise([run, run]), "apart": compare(path, tmp_path / "0.npz")}
        assert max(rows[name]["apart"].values()) < 1e-5
        assert run["value"] == pytest.approx(rows["ours"]["value"], rel=1e-5)
        assert np.load(path)["proxies"].shape == (90, 6)
    for row in rows.values():
        row["peak_bytes"] = {"median": 1 << 20, "least": 1 << 20, "most": 1 << 20}
    table = tabulate({"part": part, "rows": rows, **SIZES})
    assert table.startswith(f"{part}: 90 classes, batch 12, 6-d\n\n| ")
    assert len(table.splitlines()) == 4 + len(contestants)


def test_a_step_of_every_kind_is_measured() -> None:
    rows = {name: summarise([measure_step(how, SIZES)]) for name, how in STEPS.items()}
    table = tabulate({"part": "step", "rows": rows, **SIZES})
    assert [line.split(" |")[0] for line in table.splitlines()[4:]] == [f"| {name}" for name in STEPS]


def test_sizes_must_be_at_least_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--out", str(tmp_path), "--classes", "0"])
    assert "--classes must be at least 1" in capsys.readouterr().err
