"""A trial in words."""

from __future__ import annotations

from typing import Any

from training.run.trial_report import describe_trial


def _part(low: float, high: float, *, bands: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    recall = {"trained": 0.5, "pca-whitened": 0.4, "pca": 0.3, "raw": 0.45}
    return {
        "queries": 9, "recall_at_1": recall, "best_rival": "pca-whitened", "difference": (low + high) / 2,
        "difference_interval": [low, high], "by_class_size": bands or [],
    }  # fmt: skip


def _trial(unseen: Any, seen: Any, *, hold: float | None = 0.2) -> dict[str, Any]:
    return {"folds": 1, "unseen": unseen, "seen": seen, "hold": hold}


def test_methods_stand_in_the_order_of_what_they_find_each_with_both_questions() -> None:
    lines = describe_trial(_trial(_part(0.1, 0.2), _part(-0.1, 0.2)))
    assert "new classes (9)" in lines[1]
    assert "new photos (9)" in lines[1]
    assert [line.split("  ")[1] for line in lines[2:6]] == ["trained, hold 0.2", "raw", "pca-whitened", "pca"]
    assert lines[2].split()[-2:] == ["50.00", "50.00"]
    assert len({len(line) for line in lines[1:6]}) == 1, "columns"


def test_classes_of_different_sizes_are_told_apart_and_those_of_one_size_are_not() -> None:
    bands = [
        {"images": [40, 90], "recall_at_1": {"trained": 0.9, "pca-whitened": 0.8}},
        {"images": [3, 3], "recall_at_1": {"trained": 0.2, "pca-whitened": 0.25}},
    ]
    lines = describe_trial(_trial(None, _part(0.1, 0.2, bands=bands)))
    assert (
        "  new photos of classes of 40-90 images: trained 90.0, pca-whitened 80.0; "
        "3 images: trained 20.0, pca-whitened 25.0"
    ) in lines
    alone = describe_trial(_trial(None, _part(0.1, 0.2, bands=bands[:1])))
    assert not [line for line in alone if "classes of" in line]


def test_no_trial_says_nothing_and_one_without_anything_to_search_says_why() -> None:
    assert describe_trial(None) == []
    (line,) = describe_trial(_trial(None, None))
    assert line.startswith("no trial: too few images")
