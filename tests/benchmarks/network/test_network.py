"""The benchmark of training the network itself: what is compared, and a small run that goes on after a stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.network.__main__ import main
from benchmarks.network.variants import LOSSES, UNWEIGHTED, VARIANTS, NetworkCell, name_set
from tests.benchmarks.small_datasets import write_dataset
from training.options.config import TrainConfig
from training.options.resolve import resolve

PLAN = (("unfreeze", "last-4"), ("network_epochs", 2))


def configure(variant: str) -> TrainConfig:
    cell = NetworkCell("cars", "uniform:0.3", variant, 3, PLAN)
    return resolve(weights="none", **cell.options(width=64))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_as_much_of_the_network_on_the_same_labels(variant: str) -> None:
    config = configure(variant)
    assert (config.network.unfreeze, config.network.epochs) == ("last-4", 2)
    assert (config.seed, config.embedding.embedding_dim, str(config.data.label_noise)) == (3, 64, "uniform:0.3")
    assert config.network_loss.method == (variant if variant in LOSSES else "proxy-anchor")


def test_the_same_loss_without_confidences_differs_in_nothing_else() -> None:
    default, unweighted = configure("default").network_loss, configure(UNWEIGHTED).network_loss
    assert (default.weighs_samples, unweighted.weighs_samples) == (True, False)
    assert (default.options.alpha, default.options.delta) == (unweighted.options.alpha, unweighted.options.delta)


def test_names_tell_folders_apart_that_are_called_alike() -> None:
    assert name_set("cars", "uniform:0.3") == "cars_uniform-0.3"
    assert name_set("folder:/a/train:/a/test") != name_set("folder:/b/train:/b/test")


def test_a_small_run_writes_a_table_and_trains_nothing_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path, train=3, test=2, pictures=6, size=48)
    asked = ["--out", str(tmp_path / "out"), "--dataset", dataset, "--noise", "clean", "--weights", "none",
             "--unfreeze", "last-1", "--epochs", "1", "--width", "4", "--network-crop", "64", "--network-views", "0",
             "--rival", "crop:own"]  # fmt: skip
    main(asked)
    table = capfd.readouterr().out
    assert "| default |" in table
    assert "| raw, crop, own |" in table
    record = next((tmp_path / "out" / "results").glob("*.json"))
    first = json.loads(record.read_text())["results"]["default"]
    assert 0 <= first["recall_at_1"]["mean"] <= 100
    assert first["cells"][0]["seconds"]["processor"] > 0
    monkeypatch.setattr("benchmarks.network.train_cells.train", lambda *_, **__: pytest.fail("trained again"))
    main(asked)
    assert json.loads(record.read_text())["results"]["default"] == first
