"""The course of a loss in blocks."""

from __future__ import annotations

import pytest

from training.run.loss_curve import draw_curve


def test_the_highest_loss_is_a_full_block_and_the_lowest_a_line() -> None:
    assert draw_curve([8, 4, 2, 1], width=10) == "█▄▂▁"
    assert draw_curve([1, 8], width=10) == "▁█"


def test_of_more_epochs_than_characters_each_shows_the_mean_of_some() -> None:
    assert draw_curve([10, 6, 2, 6, 0, 2], width=3) == draw_curve([8, 4, 1], width=3)
    assert len(draw_curve(range(1000, 0, -1), width=16)) == 16


@pytest.mark.parametrize(("losses", "drawn"), [([], ""), ([1.5], ""), ([1.5, 1.5, 1.5], "▁▁▁")])
def test_nothing_is_made_of_no_course(losses: list[float], drawn: str) -> None:
    assert draw_curve(losses, width=8) == drawn
