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


def test_many_photos_decide_without_a_doubt() -> None:
    assert QUESTION in describe_network(_stage(unseen=50, seen=49))[-1]
    assert describe_network(_stage(unseen=50, seen=50))[-1] == "exported: the trained network"


def test_a_start_that_no_epoch_bettered_is_not_called_the_trained_network() -> None:
    tried = {"start": {"unseen": 0.5, "seen": 0.5}}
    told = describe_network(_stage(unseen=50, seen=50, weights="start", tried=tried))[-1]
    assert told.startswith("exported: the backbone as it was, for no epoch of its training found more")


def test_a_network_that_is_not_exported_says_whether_more_epochs_might_help() -> None:
    rising = _stage(unseen=50, seen=50, ships=False)
    assert "still rising, so that more --network-epochs may help" in describe_network(rising)[-1]
    falling = rising | {"epochs": rising["epochs"][:2], "left_by": "--val"}
    assert (
        "by --val; more epochs would hardly help (MAP@R by judged epoch: 30.0, 20.0)"
        in describe_network(falling)[-1]
    )


def test_the_device_is_named_where_the_report_knows_it() -> None:
    line = describe_network(_stage(unseen=50, seen=50, device="NVIDIA H100"))[0]
    assert "with proxy-anchor in float32 on NVIDIA H100, 2 epochs" in line


def test_where_nothing_was_held_out_no_number_of_photos_decides() -> None:
    lines = describe_network(_stage(unseen=0, seen=0, tried={}))
    assert lines[-1] == "nothing could be held out to judge it by: it ships, its weights averaged"
    assert describe_network(None) == []


def test_what_was_found_stands_beside_what_was_found_without_it() -> None:
    lines = describe_network(_stage(unseen=100, seen=20))
    assert lines[0] == (
        "network: last-2 (2 of 14 blocks, 1.5 M weights) with proxy-anchor in float32, 2 epochs on 1,234 images, 61 s"
    )
    assert lines[2:4] == [
        "  without it: new classes 25.0, new photos 25.0", "  with it (average): new classes 50.0, new photos 50.0",
    ]  # fmt: skip
