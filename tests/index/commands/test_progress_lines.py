"""Progress in a log: a line every half a minute, and one at the end of what took long."""

import pytest

from index.commands.console import EVERY_S, ProgressLines


def test_a_stage_reports_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [1000.0]
    progress = ProgressLines(clock=lambda: now[0]).stage("features", unit="images")
    for done in range(1, 5399):
        progress(done, 5398)
        now[0] += 0.0125  # 67 seconds in all
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "features: 2,401 of 5,398 images after 30 s, some 37 s left",
        "features: 4,801 of 5,398 images after 60 s, some 7 s left",
        "features: 5,398 images in 67 s",
    ]
    lines = ProgressLines(least_s=EVERY_S, clock=lambda: now[0])
    for seconds in (EVERY_S - 1, EVERY_S):  # what took less ends in silence
        progress = lines.stage(f"{seconds:.0f}", unit="items")
        progress(1, 2)
        now[0] += seconds
        progress(2, 2)
    assert capsys.readouterr().err.splitlines() == ["30: 2 items in 30 s"]
