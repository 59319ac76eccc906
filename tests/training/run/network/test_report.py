"""The network stage in words: what it found beside the frozen embedding, and how sure that is."""

from __future__ import annotations

from typing import Any

import pytest

from training.run.network.report import describe_network

QUESTION = "held-out photos decide this"


def _stage(*, unseen: int, seen: int, **changes: Any) -> dict[str, Any]:
    """A report of two epochs whose average ships; what is not searched has no score."""
    searched = {"unseen": unseen, "seen": seen}
    scores = [{part: score for part, count in searched.items() if count} for score in (0.25, 0.5)]
    return {
        "unfreeze": "last-2", "blocks": 2, "of_blocks": 14, "parameters": 1_500_000, "method": "proxy-anchor",
        "precision": "float32", "epochs": [{"map_at_r": {"unseen": one}} for one in (0.3, 0.2, 0.4)],
        "trained_on": 1234, "seconds": 61.4, "plan": None,
        "held_out": searched, "tried": {"frozen": scores[0], "average": scores[1]}, "weights": "average",
        "head": "trained", "ships": True,
    } | changes  # fmt: skip


@pytest.mark.parametrize("ships", [True, False])
@pytest.mark.parametrize(("unseen", "seen"), [(0, 17), (9, 8), (17, 0)])
def test_few_photos_that_decide_what_ships_are_said_last(unseen: int, seen: int, ships: bool) -> None:
    *_, decided, hint = describe_network(_stage(unseen=unseen, seen=seen, ships=ships))
    assert decided.startswith("exported: ")
    assert hint == f"only 17 {QUESTION}: take it as a hint; more photos a class would make it sure"


def test_a_network_that_is_not_exported_says_whether_more_epochs_might_help() -> None:
    rising = _stage(unseen=50, seen=50, ships=False)
    assert "still rising, so that more --network-epochs may help" in describe_network(rising)[-1]
    falling = rising | {"epochs": rising["epochs"][:2], "left_by": "--val"}
    assert (
        "by --val; more epochs would hardly help (MAP@R by judged epoch: 30.0, 20.0)"
        in describe_network(falling)[-1]
    )
