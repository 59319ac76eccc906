"""What is measured held against the goals."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.serving.serve_goals import find_bound, judge_memory, judge_speed, judge_start, set_goal


def cell(rate: float, p99: float = 5.0) -> dict[str, Any]:
    return {"per_second": {"median": rate, "least": rate, "most": rate}, "p99_ms": p99}


CELLS = {
    "by id": {"1": cell(300, 12.5), "32": cell(900)},
    "by upload": {"1": cell(60), "32": cell(150)},
    "plain fastapi": {"1": cell(50), "32": cell(60)},
    "plain gradio": {"1": cell(20), "32": cell(100)},
}


def test_the_bound_is_what_two_that_share_the_cores_reach_together() -> None:
    assert find_bound(300, 150) == pytest.approx(100)


def test_rates_are_held_against_bound_and_peers_and_latency_against_its_limit() -> None:
    goals = judge_speed(CELLS, bound=200, peers=["plain fastapi", "plain gradio"])
    found = [(goal["measured"], goal["met"]) for goal in goals]
    assert found == [
        (12.5, True),
        (0.75, True),
        (2.5, True),
        (1.5, False),
    ]
    assert goals[3]["name"] == "uploads, 32 clients: ours / plain gradio"


def test_our_uploads_in_int8_are_held_against_the_peers_beside_those_in_float32() -> None:
    goals = judge_speed({**CELLS, "by upload, int8": {"32": cell(240)}}, bound=200, peers=["plain fastapi"])
    assert [(goal["name"], goal["measured"]) for goal in goals[2:]] == [
        ("uploads, 32 clients: ours / plain fastapi", 2.5),
        ("uploads, 32 clients: ours in int8 / plain fastapi", 4.0),
    ]


def test_what_was_not_measured_is_not_judged() -> None:
    few = {name: {"1": each["1"]} for name, each in CELLS.items()}
    assert [goal["name"] for goal in judge_speed(few, bound=200, peers=["plain fastapi"])] == [
        "by id, one client: p99"
    ]
    many = {name: {"32": each["32"]} for name, each in CELLS.items()}
    assert len(judge_speed(many, bound=200, peers=[])) == 1


def test_a_peer_that_answers_nothing_is_beaten() -> None:
    cells = {**CELLS, "plain gradio": {"32": cell(0)}}
    assert judge_speed(cells, bound=200, peers=["plain gradio"])[-1]["met"]


@pytest.mark.parametrize(("rise", "met"), [(2.1e6, False), (1.9e6, True), (-5e6, True)])
def test_memory_is_flat_where_it_rises_by_two_hundredths_at_most(rise: float, met: bool) -> None:
    assert judge_memory(rise, middle=100e6)["met"] is met


def test_a_start_may_take_three_seconds() -> None:
    assert [judge_start("cold", seconds)["met"] for seconds in (2.99, 3.01)] == [True, False]


def test_a_goal_is_written_with_its_verdict() -> None:
    document = set_goal("g", 1.0, 2.0, " s")
    assert document == {"name": "g", "measured": 1.0, "limit": 2.0, "unit": " s", "at_most": False, "met": False}
