"""Rounds to medians, the choice of peers, and the tables of all this."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.serve_agreement import check_agreement, share_of
from benchmarks.serving.serve_speed import VARIANTS, choose_peers, summarize
from benchmarks.serving.serve_tables import format_speed


def measured(rate: float, p99: float | None = 8.0) -> dict[str, Any]:
    return {
        "per_second": rate, "p50_ms": 4.0, "p99_ms": p99, "most_ms": 9.0, "answered": 10, "refused": 1, "failed": 0,
        "broken": 0, "own_cores": 0.1, "server_cores": 1.5, "statuses": {"200": 10, "503": 1},
    }  # fmt: skip


def rounds() -> list[dict[str, Any]]:
    """Three rounds, the second the fastest."""
    return [
        {
            "contestants": {
                "by id": {"1": measured(500 + rate), "32": measured(900)},
                "by upload": {"1": measured(50), "32": measured(rate)},
                "plain fastapi": {"1": measured(40), "32": measured(60)},
            },
            "alone": {"decoding": 600 + rate, "inference": 200},
        }
        for rate in (130, 150, 140)
    ]


def test_medians_bound_and_goals_come_from_all_rounds() -> None:
    found = summarize(rounds(), peers=["plain fastapi"])
    uploads = found["cells"]["by upload"]["32"]
    assert uploads["per_second"] == {"median": 140, "least": 130, "most": 150}
    assert (uploads["answered"], uploads["refused"], uploads["statuses"]) == (30, 3, {"200": 30, "503": 3})
    assert found["bound"] == pytest.approx(1 / (1 / 740 + 1 / 200))
    ratios = {goal["name"]: goal["measured"] for goal in found["goals"]}
    assert ratios["uploads, 32 clients: ours / plain fastapi"] == pytest.approx(140 / 60)
    assert ratios["by id, one client: p99"] == 8.0


def test_a_round_without_an_answer_has_no_latency() -> None:
    three = rounds()
    for each in three[:2]:
        each["contestants"]["by id"]["1"] = {**measured(0, None), "p50_ms": None, "most_ms": None}
    found = summarize(three, peers=[])
    assert found["cells"]["by id"]["1"]["p99_ms"] == 8.0
    three[2]["contestants"]["by id"]["1"] = {**measured(0, None), "p50_ms": None, "most_ms": None}
    found = summarize(three, peers=[])
    assert found["cells"]["by id"]["1"]["p99_ms"] is None
    assert len(found["goals"]) == 1


def tried(name: str, *rates: float) -> dict[str, Any]:
    return {
        name: [
            {"settings": settings, "per_second": rate}
            for settings, rate in zip(VARIANTS[name], rates, strict=True)
        ]
    }


def test_a_peer_runs_as_people_write_it_and_in_a_faster_variant_if_there_is_one() -> None:
    usual, best = VARIANTS["fastapi"][0], VARIANTS["fastapi"][3]
    slower = list(choose_peers(tried("fastapi", 50, 40, 30, 20), clients=[1, 32]))
    assert slower == [("plain fastapi", usual, [1, 32])]
    faster = list(choose_peers(tried("fastapi", 50, 40, 30, 60), clients=[1, 32]))
    assert faster == [("plain fastapi", usual, [1, 32]), ("tuned fastapi", best, [32])]
    assert len(list(choose_peers(tried("fastapi", 50, 40, 30, 60), clients=[1]))) == 1


def test_the_usual_variants_are_a_def_handler_and_one_call_at_a_time_with_the_runtime_as_it_comes() -> None:
    assert VARIANTS["fastapi"][0] == {"handler": "def", "wait_policy": "unset"}
    assert VARIANTS["gradio"][0] == {"at_once": 1, "wait_policy": "unset"}


def test_results_in_common_do_not_depend_on_their_order() -> None:
    assert share_of(["a", "b", "c", "d"], ["d", "c", "b", "x"]) == 0.75
    assert share_of(["a", "b"], ["a", "b", "c", "d"]) == 0.5
    assert share_of([], []) == 0


def test_servers_that_find_something_else_are_not_compared() -> None:
    check_agreement({"fastapi": {"mean": 0.95}}, least=0.8)
    with pytest.raises(SystemExit, match=r"gradio has 50 % of its results with ours, 80 % needed; the comparison"):
        check_agreement({"fastapi": {"mean": 0.95}, "gradio": {"mean": 0.5}}, least=0.8)


def test_the_table_has_a_row_for_every_cell_and_verdicts() -> None:
    gallery = {"what": "clothing photos", "images": 5398, "width": 64, "index": "Flat"}
    table = format_speed({
        "gallery": gallery, "cores": 2, "tried": tried("gradio", 4, 3, 2, 1),
        "agreement": {"plain fastapi": {"photos": 32, "mean": 0.995, "least": 0.9}},
        "recall_at_1": {"float32": 0.6076, "int8": 0.6141},
        **summarize(rounds(), peers=["plain fastapi"]),
    })  # fmt: skip
    assert "## 5,398 clothing photos, 64-d, index Flat" in table
    assert "| by upload | 32 | 140.0 (130.0 - 150.0) | 4.0 | 8.0 | 3 | 0 | 5 % | 75 % | 10.71 |" in table
    assert "Recall@1, each photo asking all others: 60.76 % in float32, 61.41 % in int8; the peers' is" in table
    assert "| gradio | at once 1, wait policy unset | 4.0 |" in table
    assert "Results in common with ours: plain fastapi 99.5 % (least 90 %, 32 photos)." in table
    assert "| uploads, 32 clients: ours / plain fastapi | 2.33 | at least 2 | met |" in table
    assert "| what the cores allow, 1 / (1/d + 1/i) | 157.4 |" in table
