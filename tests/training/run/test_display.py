"""What training shows on stderr: lines of stages and epochs in a log, bars that fit on a terminal."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from training.run.display import describe_epoch, watch_training
from training.run.phases import EpochReport

CONFIDENCE = EpochReport("confidence", 2, 3, loss=0.5, seconds=1, images_per_second=1234, held_out_loss=0.25)
EMBEDDING = EpochReport(
    "embedding", 7, 40, loss=1.5, seconds=1, images_per_second=1234, positives_per_sample=1.25,
    share_without_positive=0.125,
)  # fmt: skip


def test_an_epoch_is_told_with_the_figures_of_its_phase() -> None:
    assert describe_epoch(CONFIDENCE) == "loss 0.5000, held out 0.2500, 1,234 images/s"
    assert describe_epoch(EMBEDDING) == "loss 1.5000, 1.25 positives a sample, 12.5% without, 1,234 images/s"


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


def test_a_log_says_when_a_phase_begins_and_what_a_stage_took(capsys: pytest.CaptureFixture[str]) -> None:
    with watch_training() as watcher:
        watcher.on_phase("look")
        for done in range(1, 201):
            watcher.on_images("look", done, 200)
        watcher.on_phase("features")
        for done in range(1, 1301):
            watcher.on_images("features", done, 1300)
        watcher.on_phase("trial")
        watcher.on_images("trial", 1, 1)
    told = re.sub(r"in \d+ s", "in TIME", capsys.readouterr().err).splitlines()
    assert [line for line in told if "after" not in line] == [
        "look: begins", "look: 200 views in TIME", "features: begins", "features: 1,300 images in TIME",
        "trial: begins", "trial: 1 folds in TIME",
    ]  # fmt: skip


def _read_to_the_end(terminal: int) -> bytes:
    """All that was written; a slow machine redraws the bars more often than one read gives."""
    parts = []
    with (
        os.fdopen(terminal, "rb", buffering=0) as file,
        suppress(OSError),
    ):  # Linux: an error once the writer is gone
        while part := file.read(4096):
            parts.append(part)
    return b"".join(parts)


TRIAL = {
    "unseen": {"recall_at_1": {"trained": 0.893, "raw": 0.95, "pca": 0.881}, "best_rival": "pca"},
    "seen": {"recall_at_1": {"trained": 0.958, "raw": 0.9, "pca": 0.833}, "best_rival": "pca"},
    "hold": 0.2,
}
LEARNT = [
    "trial, Recall@1 %: new classes 89.3 (untrained 88.1), new photos 95.8 (83.3)",
]


def test_what_was_learnt_so_far_is_told_in_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with watch_training() as watcher:
        watcher.on_trial(TRIAL)
        watcher.on_trial(TRIAL | {"unseen": None})
        watcher.on_trial(TRIAL | {"unseen": None, "seen": None})  # too few images for one
    assert capsys.readouterr().err.splitlines() == [
        *LEARNT, "trial, Recall@1 %: new photos 95.8 (untrained 83.3)",
    ]  # fmt: skip


def _draw_on_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int, encoding: str = "utf-8") -> str:
    """All that is written to a terminal by the epochs of a training whose loss halves from 8 on."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.openpty()
    with os.fdopen(writer, "w", encoding=encoding) as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with watch_training() as watcher:
            watcher.on_images("validation features", 5, 20)
            watcher.on_trial(TRIAL)
            for epoch in range(1, 301):
                report = replace(EMBEDDING, epoch=epoch, epochs=300, loss=8 / 2 ** (epoch / 100))
                watcher.on_epoch(report)
    return _read_to_the_end(reader).decode("utf-8", "replace")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("columns", "curve"), [(80, 16), (120, 40)])
def test_the_course_of_the_loss_fits_on_a_terminal_beside_the_bar(
    columns: int, curve: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = _draw_on_terminal(monkeypatch, columns=columns)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
    drawn = re.findall(r"300/300 .*loss 1\.0000 ([▁▂▃▄▅▆▇█]+)", told)[-1]
    assert len(drawn) == curve
    assert drawn == "".join(sorted(drawn, reverse=True))
    assert {drawn[0], drawn[-1]} == {"█", "▁"}
    assert LEARNT[0] in told


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_that_shows_no_blocks_gets_figures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _draw_on_terminal(monkeypatch, columns=80, encoding="ascii")
    assert "loss 1.0000, 1.25 positives" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_of_eighty_columns_bars_counts_and_losses_are_all_seen(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.openpty()
    with os.fdopen(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with watch_training() as watcher:
            watcher.on_images("validation features", 5, 20)
            watcher.on_epoch(EMBEDDING)
            watcher.on_validation(7, {1: 0.5})
    shown = _read_to_the_end(reader).decode("utf-8", "replace")
    for text in ("5/20", "7/40", "━", "loss 1.5000", "Recall @"):
        assert text in shown
