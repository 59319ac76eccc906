"""Progress in a log: a line every half a minute, and one at the end of what took long."""

from __future__ import annotations

import pytest

from index.commands.progress_lines import EVERY_S, ProgressLines


class _Clock:
    """A clock that a test moves on."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


def test_a_stage_tells_every_half_minute_how_far_it_is_and_at_its_end_what_it_took(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ProgressLines(clock=clock).stage("features", unit="images")
    for done in range(1, 5399):
        progress(done, 5398)
        clock.now += 0.0125  # 67 seconds in all
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "features: 2,401 of 5,398 images after 30 s",
        "features: 4,801 of 5,398 images after 60 s",
        "features: 5,398 images in 67 s",
    ]


def test_a_stage_without_a_known_total_tells_what_it_has_met(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ProgressLines(clock=clock).stage("Scanning", unit="items")
    for done in (0, 1000, 2000, 9000):
        progress(done, 0)
        clock.now += 20
    assert capsys.readouterr().err.splitlines() == ["Scanning: 2,000 items after 40 s"]


def test_what_took_less_than_asked_for_ends_in_silence(clock: _Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(least_s=EVERY_S, clock=clock)
    for seconds in (EVERY_S - 1, EVERY_S):
        progress = lines.stage(f"{seconds:.0f}", unit="items")
        progress(1, 2)
        clock.now += seconds
        progress(2, 2)
    assert capsys.readouterr().err.splitlines() == ["30: 2 items in 30 s"]
