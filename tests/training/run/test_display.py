"""What training shows on stderr: lines of stages and epochs in a log, bars that fit on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from training.run.display import describe_epoch, watch_training
from training.run.phases import EpochReport

CONFIDENCE = EpochReport("confidence", 2, 3, loss=0.5, seconds=1, images_per_second=1234, held_out_loss=0.25)


def test_a_log_has_the_first_every_tenth_and_the_last_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with watch_training() as watcher:
        watcher.on_images("features", 1, 2)
        for epoch in range(1, 24):
            watcher.on_epoch(replace(CONFIDENCE, epoch=epoch, epochs=23))
        watcher.on_validation(10, {1: 0.5, 2: 0.75})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        *(f"confidence {epoch}/23: {describe_epoch(CONFIDENCE)}" for epoch in (1, 10, 20, 23)),
        "embedding 10: Recall @1 50.00, @2 75.00 % in validation",
    ]
