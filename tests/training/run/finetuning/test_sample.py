"""A time budget that is too short for an epoch of all images fine-tunes on some of them."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.conftest import Trainer, make_machine
from tests.training.run.finetuning.test_stage import network_config
from training.network.model import NetworkModel
from training.run.finetuning import budget, sample
from training.run.finetuning.sample import choose_rows
from training.run.phases import Watcher


def test_a_sample_has_as_many_of_each_class_and_doubtful_labels_last() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 12, 6, 50])
    own = np.where(np.arange(len(labels)) % 2, 0.9, 0.1)
    rows = choose_rows(labels, own, count=24, seed=0)
    assert np.array_equal(rows, np.unique(rows))
    counts = np.bincount(labels[rows])
    assert (counts.sum(), counts.min(), counts.max()) == (24, 4, 8)
    assert (own[rows[labels[rows] == 0]] > 0.5).all()
    assert len(np.unique(labels[choose_rows(labels, None, count=8, seed=0)])) == 2  # few images: of few classes
    assert np.array_equal(choose_rows(labels, own, count=len(labels), seed=0), np.arange(len(labels)))


@pytest.mark.slow
@pytest.mark.parametrize("trained_s", [None, 5.4])
def test_fine_tuning_takes_the_images_for_which_there_is_time(
    trained_s: float | None, trainer: Trainer, other_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SAMPLED_FROM", 10)
    monkeypatch.setattr(sample, "_LEAST", 10)
    if trained_s is not None:
        speeds = {"decoded": 1e-9, "evaluated": 1e-9, "trained": trained_s, "posteriors": 0.2, "heads": 10}
        monkeypatch.setattr(sample, "measure_seconds", lambda *_, **__: speeds)
    notes = list[str]()
    config = network_config(epochs=1, time_budget="4m")
    report = trainer(config=config, val=other_pictures, watcher=Watcher(on_note=notes.append))
    network = report["finetuning"]
    taken = 48 if trained_s is None else 32  # 80 % of 240 seconds
    assert report["images"] == 48
    assert network["trained_on"] + sum(network["held_out"].values()) == taken
    assert len(network["epochs"]) == 2
    said = next(note for note in notes if "images/s train here" in note)
    assert ("4m are enough for 32 of 48 images (67% of an epoch)" in said) == (taken < 48)
    assert ", an hour for " in said
    assert json.loads((trainer.folder / "run" / "speeds.json").read_text())["trained"] > 0


@pytest.mark.parametrize(("before", "after", "taken"), [(10, 2000, 32), (2000, 10, 48)])
def test_a_resumed_run_trains_on_the_images_of_its_beginning(
    before: int, after: int, taken: int, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_LEAST", 10)
    speeds = {"decoded": 1e-9, "evaluated": 1e-9, "trained": 5.9, "posteriors": 0, "heads": 0}
    monkeypatch.setattr(sample, "measure_seconds", lambda *_, **__: speeds)
    config = network_config(epochs=2, time_budget="4m")
    monkeypatch.setattr(budget, "SAMPLED_FROM", before)
    trainer(config=config, stop=("finetuning", 2))
    monkeypatch.setattr(budget, "SAMPLED_FROM", after)
    network = trainer(config=config, resume=True)["finetuning"]
    assert network["trained_on"] + sum(network["held_out"].values()) == taken


def test_speeds_are_measured_as_training_runs_within_its_time_and_an_interrupt_keeps_the_frozen_embedding(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(model: NetworkModel, images: Tensor) -> float:
        asked.append((model.precision, len(images)))
        time.sleep(0.2)
        raise KeyboardInterrupt

    monkeypatch.setattr(budget, "SAMPLED_FROM", 10)
    monkeypatch.setattr(sample, "time_step", measure)
    machine = make_machine(trainer.cache, precision="bfloat16")
    network = trainer(config=network_config(time_budget="4m", micro_batch_size=4), machine=machine)["finetuning"]
    assert asked == [(torch.bfloat16, 4)]
    assert (network["ended_by"], network["selected"]) == ("Ctrl-C", False)
    assert network["prepared_s"] > 0.2
