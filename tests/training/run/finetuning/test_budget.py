"""Time budget of the network: training ends with its time, in which learning rates fall, also after an interruption."""

import time

import pytest

from tests.training.conftest import Trainer
from tests.training.run.finetuning.test_stage import network_config
from tests.training.runs import read_metrics
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.run.checkpoint import load_checkpoint
from training.run.finetuning import fit as network_fit
from training.run.finetuning.budget import Budget, OutOfTimeError
from training.run.phases import EpochReport, Watcher
from training.run.report_text import format_report


def budget_config(time_budget: str) -> TrainConfig:
    return network_config(epochs=None, time_budget=time_budget)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(step, steps) of every learning rate that was set."""
    seen: list[tuple[int, int]] = []
    real = network_fit.set_rates

    def note(optimizer, *, step: int, steps: int) -> None:
        seen.append((step, steps))
        real(optimizer, step=step, steps=steps)

    monkeypatch.setattr(network_fit, "set_rates", note)
    return seen


@pytest.mark.slow
def test_a_run_trains_until_its_time_is_over_and_its_rates_fall_with_the_time(trainer: Trainer, rates) -> None:
    told: list[EpochReport] = []
    config = budget_config("12s")
    network = trainer(config=config, watcher=Watcher(on_epoch=told.append))["finetuning"]
    used_s = load_checkpoint(trainer.folder / "run" / "checkpoints" / "finetuning.safetensors")[1]["used_s"]
    assert used_s >= 3, "at most what preparing and choosing weights take is left"
    assert network["seconds"] < 26, "on a machine with other work"
    assert len(network["epochs"]) > 1
    assert network["epochs"][-1]["map_at_r"] is not None, "the last epoch is judged"
    shares = [step / steps for step, steps in rates]
    assert shares == sorted(shares)
    assert 0.7 < shares[-1] < 1, "one step takes some seconds beside other work"
    last = [report for report in told if report.phase == "finetuning"][-1]
    assert last.epoch == last.epochs
    assert "of --time-budget 12s" in format_report(trainer(config=config, resume=True), config=config)


def test_a_resumed_run_goes_on_with_the_time_that_it_had_used(trainer: Trainer, rates) -> None:
    config = budget_config("10h")
    trainer(config=config, stop=("finetuning", 2))
    checkpoint = trainer.folder / "run" / "checkpoints" / "finetuning.safetensors"
    used = load_checkpoint(checkpoint)[1]["used_s"]
    assert used > 0
    before = len(rates)
    trainer(config=config, stop=("finetuning", 3), resume=True)
    assert load_checkpoint(checkpoint)[1]["used_s"] > used
    assert rates[before] >= rates[before - 1]


def test_epochs_that_end_before_the_time_end_the_training_and_the_rates_fall_with_them(trainer, rates) -> None:
    network = trainer(config=network_config(epochs=2, time_budget="10h"))["finetuning"]
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]
    assert all(epoch["map_at_r"] is not None for epoch in network["epochs"])
    shares = [step / steps for step, steps in rates]
    assert shares == pytest.approx([number / len(shares) for number in range(len(shares))], abs=0.02)


def test_preparation_ends_once_its_speed_shows_that_it_takes_longer_than_the_budget() -> None:
    budget = Budget(FinetuneConfig(time_budget="1s"), images=8, on_cpu=True)
    note = budget.limit_preparation(lambda *_: None)
    note("decoding", 1, 2)
    note("decoding", 2, 2)
    note("outputs", 1, 1000)
    time.sleep(0.06)
    with pytest.raises(OutOfTimeError) as raised:
        note("outputs", 2, 1000)
    assert 59 < raised.value.seconds < 600


def test_preparation_that_uses_up_the_time_leaves_the_frozen_embedding_and_says_so(trainer: Trainer, rates) -> None:
    config, notes = budget_config("0.001s"), list[str]()
    report = trainer(config=config, watcher=Watcher(on_note=notes.append))
    network = report["finetuning"]
    assert (len(network["epochs"]), network["selected"], rates) == (1, False, [])
    assert not [line for line in read_metrics(trainer.folder / "run") if line["phase"] == "finetuning"]
    said = format_report(report, config=config)
    assert "--time-budget 0.001s leaves no time for a step" in said
    assert "MAP@R" not in said
    assert any("so nothing is fine-tuned: train anew with --time-budget 1m" in note for note in notes)
