"""The benchmark of epochs: photos are parted once for all, and the table has the ratios of medians."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks.training.network_epoch import OURS, PLAIN, TUNED, split_photos, summarise, tabulate
from benchmarks.training.network_loop import run_loop


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for label, colour in (("red", (200, 20, 20)), ("blue", (20, 20, 200))):
        (tmp_path / label).mkdir()
        for number in range(4):
            Image.new("RGB", (40, 48), colour).save(tmp_path / label / f"{number}.jpg")
    return tmp_path


def test_photos_train_or_are_searched_and_the_seed_alone_says_which(photos: Path) -> None:
    train, test = split_photos(photos, images=5, searched=None, seed=1)
    assert (len(train), len(test)) == (5, 3)
    assert not {record.path for record in train} & {record.path for record in test}
    assert all(record.label == record.path.parent.name for record in train)
    assert split_photos(photos, images=5, searched=None, seed=1) == (train, test)
    assert len(split_photos(photos, images=5, searched=2, seed=1)[1]) == 2


def test_photos_must_be_left_to_be_searched(photos: Path) -> None:
    with pytest.raises(SystemExit, match="8 photos, of which --images 8 leave none"):
        split_photos(photos, images=8, searched=None, seed=0)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_loop_trains_and_searches(photos: Path, bfloat16: bool) -> None:
    train, test = split_photos(photos, images=4, searched=None, seed=1)
    with torch.random.fork_rng():  # the loop seeds its process, as scripts do
        found = run_loop(
        train=[(str(record.path), record.label) for record in train],
        test=[(str(record.path), record.label) for record in test],
        backbone="mobilenet_v2", weights=None, width=4, side=32, batch=2, epochs=2, workers=0, bfloat16=bfloat16,
        seed=0,
    )  # fmt: skip
    assert len(found["epoch_seconds"]) == 2
    assert 0 <= found["recall_at_1"] <= 1


def test_the_table_has_seconds_rates_ratios_and_recall() -> None:
    def row(*seconds: float, recall: float, learnt_from: int = 300) -> dict:
        run = {
            "epoch_seconds": list(seconds), "recall_at_1": recall, "learnt_from": learnt_from,
            "once_seconds": 7.0, "precision": "bfloat16",
        }  # fmt: skip
        return summarise([run])

    rows = {
        OURS: row(10, 20, 15, recall=0.5, learnt_from=240),
        PLAIN: row(45, recall=0.25),
        TUNED: row(30, recall=0.25),
    }
    sizes = {"images": 300, "searched": 9, "side": 160, "batch": 32, "width": 64, "epochs": 2}
    table = tabulate({**sizes, "rows": rows})
    assert f"| {OURS} | 240 | 15.0 (10.0 - 20.0) | 16.0 (12.0 - 24.0) | 1.00 | 50.00 |" in table
    assert f"| {PLAIN} | 300 | 45.0 (45.0 - 45.0) | 6.7 (6.7 - 6.7) | 2.40 | 25.00 |" in table
    assert "Ours trained in bfloat16, and took 7.0 (7.0 - 7.0) s beside its epochs" in table
