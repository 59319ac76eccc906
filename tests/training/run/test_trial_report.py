"""A trial in words."""

from __future__ import annotations

from typing import Any

import pytest

from training.run.trial_report import describe_trial


def _part(low: float, high: float, *, bands: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    recall = {"trained": 0.5, "pca-whitened": 0.4, "pca": 0.3, "raw": 0.45}
    return {
        "queries": 9, "recall_at_1": recall, "best_rival": "pca-whitened", "difference": (low + high) / 2,
        "difference_interval": [low, high], "by_class_size": bands or [],
    }  # fmt: skip


def _trial(unseen: Any, seen: Any, *, better: str | None = None, hold: float | None = 0.2) -> dict[str, Any]:
    return {"folds": 1, "unseen": unseen, "seen": seen, "hold": hold, "better_rival": better}


def test_methods_stand_in_the_order_of_what_they_find_each_with_both_questions() -> None:
    lines = describe_trial(_trial(_part(0.1, 0.2), _part(-0.1, 0.2)), takes_rival=True)
    assert "new classes (9)" in lines[1]
    assert "new photos (9)" in lines[1]
    assert [line.split("  ")[1] for line in lines[2:6]] == ["trained, hold 0.2", "raw", "pca-whitened", "pca"]
    assert lines[2].split()[-2:] == ["50.00", "50.00"]
    assert len({len(line) for line in lines[1:6]}) == 1, "columns"


@pytest.mark.parametrize(
    ("better", "takes_rival", "last"),
    [
        (
            None,
            True,
            "so the trained embedding is kept: +15.0 [+10.0, +20.0] against pca-whitened on new classes",
        ),
        (
            "pca",
            True,
            "so the embedding is pca, without training, which is clearly behind: +15.0",
        ),
        ("pca", False, "warning: training is clearly behind pca of the same width on this data (+15.0"),
    ],
)
def test_the_last_line_says_what_ships_and_why(better: str | None, takes_rival: bool, last: str) -> None:
    lines = describe_trial(_trial(_part(0.1, 0.2), None, better=better), takes_rival=takes_rival)
    assert lines[-1].startswith(last)


def test_a_trained_embedding_that_only_nothing_clearly_beats_is_kept_and_not_praised() -> None:
    lines = describe_trial(_trial(_part(-0.2, 0.1), _part(0.1, 0.2)), takes_rival=True)
    assert lines[-1].startswith("nothing is clearly ahead of the trained embedding: kept: -5.0 [-20.0, +10.0]")
    assert lines[-1].endswith("intervals over classes)")


def test_an_interval_below_nothing_that_does_not_decide_is_told_so() -> None:
    lines = describe_trial(_trial(_part(-0.2, -0.1), _part(0.1, 0.2)), takes_rival=True)
    assert "kept: -15.0 [-20.0, -10.0] against pca-whitened" in lines[-1]
    assert lines[-1].endswith("; a wider one decides, as the best of several is partly so by chance)")


def test_classes_of_different_sizes_are_told_apart_and_those_of_one_size_are_not() -> None:
    bands = [
        {"images": [40, 90], "recall_at_1": {"trained": 0.9, "pca-whitened": 0.8}},
        {"images": [3, 3], "recall_at_1": {"trained": 0.2, "pca-whitened": 0.25}},
    ]
    lines = describe_trial(_trial(None, _part(0.1, 0.2, bands=bands)), takes_rival=True)
    assert (
        "  new photos of classes of 40-90 images: trained 90.0, pca-whitened 80.0; "
        "3 images: trained 20.0, pca-whitened 25.0"
    ) in lines
    alone = describe_trial(_trial(None, _part(0.1, 0.2, bands=bands[:1])), takes_rival=True)
    assert not [line for line in alone if "classes of" in line]


def test_no_trial_says_nothing_and_one_without_anything_to_search_says_why() -> None:
    assert describe_trial(None, takes_rival=True) == []
    (line,) = describe_trial(_trial(None, None), takes_rival=True)
    assert line.startswith("no trial: too few images")
