"""Fronts of recall and rate."""

from __future__ import annotations

import pytest

from benchmarks.ann.ann_fronts import Point, compare, find_front, rate_at


def _point(recall: float, rate: float) -> Point:
    return {"recall": recall, "rate": rate}


FRONT = [_point(0.90, 1000), _point(0.98, 100)]


def test_a_front_has_no_point_that_another_beats() -> None:
    points = [*FRONT, _point(0.95, 90), _point(0.90, 900), _point(0.85, 1000)]
    assert find_front(points) == FRONT


@pytest.mark.parametrize(
    ("recall", "rate"), [(0.5, 1000), (0.90, 1000), (0.94, 10**2.5), (0.98, 100), (0.981, None)]
)
def test_a_front_is_log_linear_between_its_points(recall: float, rate: float | None) -> None:
    assert rate_at(FRONT, recall) == (None if rate is None else pytest.approx(rate))


def test_a_point_is_compared_with_the_best_peer_that_reaches_its_recall() -> None:
    fronts = {"fast": [_point(0.95, 5000)], "slow": [_point(0.99, 50)], "better": FRONT}
    assert compare(_point(0.98, 150), fronts) == {
        "peer": "better",
        "peer_rate": pytest.approx(100),
        "ratio": pytest.approx(1.5),
    }
    assert compare(_point(0.985, 150), fronts)["peer"] == "slow"
    assert compare(_point(0.995, 150), fronts)["ratio"] is None
