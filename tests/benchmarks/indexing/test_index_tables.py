"""The tables of the benchmark of indexing."""

from __future__ import annotations

import pytest

from benchmarks.indexing.index_tables import format_speed


@pytest.mark.parametrize(("ours", "over_loop", "of_bound"), [(120, "met", "met"), (100, "met", "not met")])
def test_the_table_says_which_goals_are_met(ours: float, over_loop: str, of_bound: str) -> None:
    rates = {"ours": ours, "loop": 40, "decoding": 240, "inference": 240}
    text = format_speed({
        "what": "photos", "images": 9, "mib": 1, "on_gpu": False, "allowed": 120.0,
        "rates": {name: {"median": rate, "least": rate, "most": rate} for name, rate in rates.items()},
        "loop_settings": {"chosen": {"workers": 2}}, "inference_settings": {"chosen": {"batch_size": 8, "callers": 2}},
        "agreement": {"images": 9, "mean_cosine": 1.0, "least_cosine": 1.0},
        "over_loop": ours / 40, "of_bound": ours / 120,
    })  # fmt: skip
    assert "batch size" not in text
    assert f"| ours / loop | {ours / 40:.2f} (goal 2.5: {over_loop}) |" in text
    assert f"| ours / allowed | {ours / 120:.2f} (goal 0.9: {of_bound}) |" in text
