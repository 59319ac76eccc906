"""--time-budget in whole runs: a plan beforehand, in the report, and the same after an interruption."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from tests.training.conftest import Trainer
from tests.training.run.network.test_stage import network_config
from tests.training.runs import figures
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.commands import format_report
from training.options.config import TrainConfig
from training.options.network import NetworkConfig
from training.run.network import budget
from training.run.network.plan import Costs, DepthCosts, choose_plan, list_depths, smaller_side
from training.run.network.speed import SpeedTrial, decode_sample
from training.run.phases import Watcher


def budget_config(**changes: Any) -> TrainConfig:
    """As much of a small network as there is time for."""
    open_ = dict.fromkeys(("unfreeze", "network_epochs", "network_crop"))
    return network_config(**{**open_, "time_budget": "10h", "network_patience": 1, **changes})


@pytest.mark.slow
def test_a_run_within_a_time_says_its_plan_beforehand_and_keeps_it(trainer: Trainer) -> None:
    told: list[str] = []
    watcher = Watcher(on_note=told.append, on_epoch=lambda report: told.append(report.phase))
    report = trainer(config=budget_config(), watcher=watcher)
    network, plan = report["network"], report["network"]["plan"]
    (note,) = [
        text for text in told if text.startswith("network: will train the whole network on views of 24 pix")
    ]
    assert told.index(note) < told.index("network")
    assert (plan["unfreeze"], plan["epochs"]) == ("all", 20)
    assert (network["unfreeze"], network["network_crop"]) == ("all", 24)
    assert 0 < plan["planned_for_these_epochs"] <= plan["planned_seconds"] < plan["budget_seconds"] == 36_000
    assert plan["measured_seconds"] == network["seconds"]
    assert "planned: 20 epochs in" in format_report(report, config=budget_config())


@pytest.mark.slow
def test_what_is_given_is_kept_and_a_resume_keeps_the_plan(trainer: Trainer, monkeypatch) -> None:
    given = {"unfreeze": "last-2", "network_epochs": 2, "network_patience": 2}
    config = budget_config(**given)
    whole = trainer("whole", config=config)["network"]
    assert (whole["unfreeze"], whole["plan"]["epochs"]) == ("last-2", 2)
    trainer(stop=("network", 2), config=config)
    monkeypatch.setattr(budget, "choose_plan", lambda *_, **__: pytest.fail("planned again"))
    resumed = trainer(resume=True, config=config)
    assert resumed["network"]["plan"]["measured_seconds"] is None, "no part of it is the whole"
    assert trainer.weights() == trainer.weights("whole")
    assert figures(trainer.folder / "run") == figures(trainer.folder / "whole")
    trainer("plain", config=network_config(**given, network_crop=None))
    assert trainer.weights("plain") == trainer.weights("whole"), "measuring leaves nothing behind"


def test_in_a_time_that_is_too_short_the_frozen_embedding_ships_and_what_would_do_is_said(trainer) -> None:
    told: list[str] = []
    config = budget_config(time_budget="0.001s")
    report = trainer(config=config, watcher=Watcher(on_note=told.append))
    said = r"network: stays as it is: --time-budget 0 s is too short for 1 epoch of --unfreeze last-1: .* Start another"
    assert any(re.match(said, text) for text in told)
    assert re.search(said, format_report(report, config=config))
    assert (report["network"]["ships"], report["method"]) == (False, "proxy-nca")
    assert (trainer.folder / "run" / "head.safetensors").exists()
    assert not (trainer.folder / "run" / "network.json").exists()


@pytest.mark.parametrize(
    "changes", [{"network_batch_norm": "train"}, {"method": "spa", "recipe": "paper", "steps": None, "epochs": 1}]
)
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


ALL, SOME, LAST = None, 4, 1


def costs(training: dict[int | None, float], *, once: float = 10, every: int = 1, believes: bool = False) -> Costs:
    """Seconds of an epoch's steps by depth; a judgement takes 1, one of all labels 5 more."""
    depths = {depth: DepthCosts(seconds, judging=1, believing=5) for depth, seconds in training.items()}
    return Costs(once, every, believes, 4, depths)


@pytest.mark.parametrize(
    ("unfreeze", "blocks", "expected"),
    [("last-4", 9, [4]), ("all", 9, [None]), ("auto", 3, [None, 2, 1]), ("auto", 9, [None, 8, 4, 2, 1])],
)
def test_what_is_open_is_tried_from_the_whole_network_down_to_its_last_block(unfreeze, blocks, expected) -> None:
    assert list_depths(NetworkConfig(unfreeze, time_budget="1m"), blocks=blocks) == expected


@pytest.mark.parametrize(("crop", "side"), [(224, 160), (32, 24), (10, 8), (8, None)])
def test_smaller_views_have_half_the_pixels_in_steps_of_eight(crop: int, side: int | None) -> None:
    assert smaller_side(crop) == side


@pytest.mark.parametrize(
    ("budget_s", "epochs", "depth", "planned", "seconds"),
    [
        (10_000, None, ALL, 20, 10 + 20 * 101),  # time is left: no more than is of use
        (1_000, None, ALL, 8, 10 + 8 * 101),  # nine would end at 919 of 900
        (600, None, SOME, 10, 10 + 10 * 51),  # six of the whole would be 616 of 540
        (300, None, LAST, 12, 10 + 12 * 21),
        (90, None, LAST, 3, 10 + 3 * 21),  # for six epochs nothing has time: the cheapest, as far as it goes
        (600, 2, ALL, 2, 10 + 2 * 101),  # as many as were asked for, not more
        (600, 8, SOME, 8, 10 + 8 * 51),
    ],
)  # fmt: skip
def test_the_deepest_part_with_time_for_enough_epochs_is_planned(
    budget_s, epochs, depth, planned, seconds
) -> None:
    plan = choose_plan(costs({ALL: 100, SOME: 50, LAST: 20}), budget_s=budget_s, epochs=epochs)
    assert (plan.last, plan.epochs, plan.seconds) == (depth, planned, seconds)
    assert plan.seconds <= 0.9 * budget_s


def test_judged_is_every_few_epochs_and_after_the_last_but_labels_are_not_after_that() -> None:
    assert costs({ALL: 9}, once=0, every=2, believes=True).total(ALL, 4) == 4 * 9 + 2 + 5
    assert costs({ALL: 9}, once=0, every=2, believes=True).total(ALL, 5) == 5 * 9 + 3 + 2 * 5
    assert costs({ALL: 9}, once=0, every=2).total(ALL, 5) == 5 * 9 + 3


def test_views_are_kept_where_the_epochs_are_more() -> None:
    kept = Costs(10, 1, False, 4, {LAST: DepthCosts(epoch=9, kept_epoch=3, keeping=20, once=7)})
    assert kept.total(LAST, 4) == 17 + 4 * 9
    assert kept.total(LAST, 5) == 17 + 20 + 5 * 3
    assert kept.fitting(LAST, 50) == 3
    assert kept.fitting(LAST, 52) == 5


def test_a_time_for_not_even_one_epoch_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(InputError, match=r"--time-budget 60 s is too short for 1 epoch of --unfreeze last-1: "
                       r".* needs 2\.33 min\. .* --time-budget 3m, or fewer images"):  # fmt: skip
        choose_plan(costs({ALL: 200, LAST: 115}), budget_s=60, epochs=None)
    assert choose_plan(costs({ALL: 200, LAST: 115}), budget_s=180, epochs=None).epochs == 1
    with pytest.raises(
        InputError, match=r"9 epochs of --unfreeze all: .* fewer --network-epochs, a smaller --unf"
    ):
        choose_plan(costs({ALL: 100}), budget_s=600, epochs=9)


def test_a_plan_settles_what_was_open_and_nothing_else() -> None:
    plan = choose_plan(costs({SOME: 50}), budget_s=600, epochs=None)
    settled = plan.settle(NetworkConfig("auto", time_budget="10m", network_epochs=None, network_lr=0.1))
    assert (settled.unfreeze, settled.epochs, settled.network_lr) == ("last-4", 10, 0.1)
    report = plan.report(epochs=5, seconds=500.0)
    assert (report["planned_for_these_epochs"], report["measured_seconds"]) == (10 + 5 * 51, 500)
