"""--time-budget in whole runs: a plan beforehand, in the report, and the same after an interruption."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from index.images.preprocess import PreprocessConfig
from tests.training.conftest import make_machine
from tests.training.run.network.test_stage import network_config
from tests.training.runs import InterruptionError, figures, interrupt_at, weights
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.commands import format_report
from training.options.config import TrainConfig
from training.run.network import budget
from training.run.network.speed import SpeedTrial, decode_sample
from training.run.phases import Watcher
from training.run.train import train


def budget_config(**changes: Any) -> TrainConfig:
    """As much of a small network as there is time for."""
    planned = {
        "unfreeze": None,
        "network_epochs": None,
        "time_budget": "10h",
        "network_patience": 1,
        "network_crop": None,
    }
    return network_config(**planned | changes)


@pytest.mark.slow
def test_a_run_within_a_time_says_its_plan_beforehand_and_keeps_it(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    config = budget_config()
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache),
                   watcher=Watcher(on_note=told.append, on_epoch=lambda report: told.append(report.phase)))  # fmt: skip
    plan = report["network"]["plan"]
    notes = [
        text for text in told if text.startswith("network: will train the whole network on views of 24 pixels")
    ]
    assert len(notes) == 1
    assert told.index(notes[0]) < told.index("network")
    assert (plan["unfreeze"], plan["epochs"]) == ("all", 20)
    assert (report["network"]["unfreeze"], report["network"]["network_crop"]) == ("all", 24)
    assert 0 < plan["planned_for_these_epochs"] <= plan["planned_seconds"] < plan["budget_seconds"] == 36_000
    assert plan["measured_seconds"] == report["network"]["seconds"]
    assert "planned: 20 epochs in" in format_report(report, config=config)


def test_what_is_given_is_kept_and_a_resume_keeps_the_plan(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    config = budget_config(unfreeze="last-2", network_epochs=2, network_patience=2)
    machine = make_machine(cache)
    whole = train(pictures, tmp_path / "whole", config=config, machine=machine)
    assert (whole["network"]["unfreeze"], whole["network"]["plan"]["epochs"]) == ("last-2", 2)
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=config, machine=machine, watcher=interrupt_at("network", 2))
    monkeypatch.setattr(budget, "choose_plan", lambda *_, **__: pytest.fail("planned again"))
    resumed = train(pictures, tmp_path / "run", config=config, machine=machine, resume=True)
    assert resumed["network"]["plan"]["measured_seconds"] is None, "no part of it is the whole"
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")
    planned = network_config(unfreeze="last-2", network_epochs=2, network_patience=2, network_crop=None)
    train(pictures, tmp_path / "plain", config=planned, machine=machine)
    assert weights(tmp_path / "plain") == weights(tmp_path / "whole"), "measuring leaves nothing behind"


def test_in_a_time_that_is_too_short_the_frozen_embedding_ships_and_what_would_do_is_said(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    config = budget_config(time_budget="0.001s")
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache),
                   watcher=Watcher(on_note=told.append))  # fmt: skip
    said = r"network: stays as it is: --time-budget 0 s is too short for 1 epoch of --unfreeze last-1: .* Start another"
    assert any(re.match(said, text) for text in told)
    assert re.search(said, format_report(report, config=config))
    assert (report["network"]["ships"], report["method"]) == (False, "proxy-nca")
    assert (tmp_path / "run" / "head.safetensors").exists()
    assert not (tmp_path / "run" / "network.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"network_batch_norm": "train"},
        {"method": "spa", "recipe": "paper", "steps": None, "epochs": 1},
    ],
)  # fmt: skip
def test_timing_takes_real_steps_of_any_loss_and_takes_them_back(pictures: Path, changes: dict[str, Any]) -> None:
    config = budget_config(**changes)
    backbone = load_backbone("mobilenet_v3_small", "none")
    before = {name: tensor.clone() for name, tensor in backbone.network.state_dict().items()}
    extractor = Extractor(backbone, PreprocessConfig(40, 32), device=torch.device("cpu"), precision="float32")
    sample = decode_sample(sorted(pictures.rglob("*.jpg"))[:9], extractor.preprocess, workers=1)
    assert sample.pixels.shape == (9, 40, 40, 3)
    trial = SpeedTrial(
        extractor, sample.pixels, share=0.8, class_count=4, config=config, guidance=None, precision=torch.float32
    )
    whole, last = trial.time_depth(None), trial.time_depth(2)
    assert min(whole.step, whole.a_pass, last.step, last.a_pass) > 0
    assert (whole.front, whole.centre) == (None, 0), "of the whole network nothing is frozen"
    assert last.front is not None
    assert min(last.front, last.centre) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.network.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in backbone.network.parameters())
