"""The benchmark of evaluation: its sets, its comparison; a small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training.evaluation import VIEWS, main, make_large_classes, make_small_classes, summarize


def test_small_classes_have_the_sizes_of_online_products() -> None:
    labels = make_small_classes(20_000, seed=3)
    sizes = np.unique(labels, return_counts=True)[1][:-1]  # the last is cut
    assert (sizes.min(), sizes.max()) == (2, 12)
    assert sizes.mean() == pytest.approx(60_502 / 11_316, abs=0.1)


def test_large_classes_are_of_one_size_and_part_no_photo() -> None:
    vectors = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    labels = make_large_classes(vectors)
    assert np.unique(labels, return_counts=True)[1].tolist() == [20] * 100
    assert (labels.reshape(-1, VIEWS) == labels[::VIEWS, None]).all()


@pytest.mark.slow  # it imports torch again and again
def test_a_small_run_compares_times_memory_and_scores(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = np.random.default_rng(0).normal(size=(120, 1, 16)) + np.random.default_rng(1).normal(
        size=(120, VIEWS, 16)
    )
    np.save(tmp_path / f"coefficients-{VIEWS}-0-16.npy", table.astype(np.float16))
    out = tmp_path / "out"
    main(["--out", str(out), "--vectors", str(tmp_path), "--rows", "500", "--width", "16", "--rounds", "1"])
    results = json.loads((out / "record.json").read_text())["results"]
    assert set(results) == {"small classes", "large classes"}
    for result in results.values():
        assert result["rows"] == 500
        assert result["times ours"]["ours"] == 1
        assert max(result["differences"]["pytorch-metric-learning"].values()) < 1e-6
    assert (out / "table.md").read_text() in capfd.readouterr().out
    assert not list(out.rglob("*.npy"))


def test_scores_that_differ_end_the_comparison() -> None:
    ours = {"seconds": 1.0, "peak_mib": 2.0, "scores": {"Recall@1": 0.5}}
    peer = {"seconds": 3.0, "peak_mib": 9.0, "scores": {"Recall@1": 0.5}}
    assert summarize({"ours": [ours], "peer": [peer]})["times ours"] == {"ours": 1.0, "peer": 3.0}
    with pytest.raises(SystemExit, match="the comparison is void"):
        summarize({"ours": [ours], "peer": [{**peer, "scores": {"Recall@1": 0.6}}]})


def test_folders_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([])
    assert error.value.code == 2
    assert "--out and --vectors are needed" in capsys.readouterr().err
