"""A plan from given speeds: which stage is preferred, how many epochs, and what is said where nothing fits."""

from __future__ import annotations

import pytest

from index.errors import InputError
from training.options.network import NetworkConfig
from training.run.network.plan import Costs, DepthCosts, choose_plan, list_depths, smaller_side

ALL, SOME, LAST = None, 4, 1


def costs(training: dict[int | None, float], *, once: float = 10, every: int = 1, believes: bool = False) -> Costs:
    """Seconds of an epoch's steps by depth; a judgement takes 1, one of all labels 5 more."""
    depths = {depth: DepthCosts(seconds, judging=1, believing=5) for depth, seconds in training.items()}
    return Costs(once, every, believes, 4, depths)


@pytest.mark.parametrize(
    ("unfreeze", "blocks", "expected"),
    [("last-4", 9, [4]), ("all", 9, [None]), ("auto", 3, [None, 2, 1]), ("auto", 9, [None, 8, 4, 2, 1])],
)
def test_what_is_open_is_tried_from_the_whole_network_down_to_its_last_block(unfreeze, blocks, expected) -> None:
    assert list_depths(NetworkConfig(unfreeze, time_budget="1m"), blocks=blocks) == expected


@pytest.mark.parametrize(("crop", "side"), [(224, 160), (32, 24), (10, 8), (8, None)])
def test_smaller_views_have_half_the_pixels_in_steps_of_eight(crop: int, side: int | None) -> None:
    assert smaller_side(crop) == side


@pytest.mark.parametrize(
    ("budget_s", "epochs", "depth", "planned", "seconds"),
    [
        (10_000, None, ALL, 20, 10 + 20 * 101),  # time is left: no more than is of use
        (1_000, None, ALL, 8, 10 + 8 * 101),  # nine would end at 919 of 900
        (800, None, ALL, 7, 10 + 7 * 101),
        (600, None, SOME, 10, 10 + 10 * 51),  # six of the whole would be 616 of 540
        (300, None, LAST, 12, 10 + 12 * 21),
        (90, None, LAST, 3, 10 + 3 * 21),  # for six epochs nothing has time: the cheapest, as far as it goes
        (36, None, LAST, 1, 10 + 21),
        (600, 2, ALL, 2, 10 + 2 * 101),  # as many as were asked for, not more
        (600, 8, SOME, 8, 10 + 8 * 51),
    ],
)  # fmt: skip
def test_the_deepest_part_with_time_for_enough_epochs_is_planned(
    budget_s, epochs, depth, planned, seconds
) -> None:
    plan = choose_plan(costs({ALL: 100, SOME: 50, LAST: 20}), budget_s=budget_s, epochs=epochs)
    assert (plan.last, plan.epochs, plan.seconds) == (depth, planned, seconds)
    assert plan.seconds <= 0.9 * budget_s


def test_judged_is_every_few_epochs_and_after_the_last_but_labels_are_not_after_that() -> None:
    assert costs({ALL: 9}, once=0, every=2, believes=True).total(ALL, 4) == 4 * 9 + 2 + 5
    assert costs({ALL: 9}, once=0, every=2, believes=True).total(ALL, 5) == 5 * 9 + 3 + 2 * 5
    assert costs({ALL: 9}, once=0, every=2).total(ALL, 5) == 5 * 9 + 3


def test_views_are_kept_where_the_epochs_are_more() -> None:
    kept = Costs(10, 1, False, 4, {LAST: DepthCosts(epoch=9, kept_epoch=3, keeping=20, once=7)})
    assert kept.total(LAST, 4) == 17 + 4 * 9
    assert kept.total(LAST, 5) == 17 + 20 + 5 * 3
    assert kept.fitting(LAST, 50) == 3
    assert kept.fitting(LAST, 52) == 5


def test_a_time_for_not_even_one_epoch_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(InputError, match=r"--time-budget 60 s is too short for 1 epoch of --unfreeze last-1: "
                       r".* needs 2\.33 min\. .* --time-budget 3m, or fewer images"):  # fmt: skip
        choose_plan(costs({ALL: 200, LAST: 115}), budget_s=60, epochs=None)
    needed = choose_plan(costs({ALL: 200, LAST: 115}), budget_s=180, epochs=None)
    assert needed.epochs == 1


def test_epochs_that_were_asked_for_are_not_cut() -> None:
    with pytest.raises(
        InputError, match=r"9 epochs of --unfreeze all: .* fewer --network-epochs, a smaller --unf"
    ):
        choose_plan(costs({ALL: 100}), budget_s=600, epochs=9)


def test_the_report_sets_what_was_planned_for_the_epochs_there_were_beside_what_was_measured() -> None:
    plan = choose_plan(costs({ALL: 100}), budget_s=1_000, epochs=None)
    report = plan.report(epochs=5, seconds=500.0)
    assert (report["epochs"], report["planned_seconds"]) == (8, 10 + 8 * 101)
    assert (report["planned_for_these_epochs"], report["measured_seconds"]) == (10 + 5 * 101, 500)


def test_a_plan_settles_what_was_open_and_nothing_else() -> None:
    plan = choose_plan(costs({SOME: 50}), budget_s=600, epochs=None)
    settled = plan.settle(NetworkConfig("auto", time_budget="10m", network_epochs=None, network_lr=0.1))
    assert (settled.unfreeze, settled.epochs, settled.network_lr) == ("last-4", 10, 0.1)
