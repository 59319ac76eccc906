"""The network stage in whole runs: what trains, what is held out, what ships, and what a resume gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.exports import export_run
from export.to_onnx import MIN_COSINE
from index.errors import InputError, RunError
from index.model.embedder import Embedder
from tests.training.conftest import make_machine
from tests.training.runs import InterruptionError, figures, interrupt_at, read_metrics, weights
from tests.training.small_towers import VIT
from training.audit.run_audit import audit_labels
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.data.datasets import list_dataset
from training.head.embedding_heads import ProjectionHead
from training.network.blocks import find_blocks
from training.options.config import TrainConfig
from training.options.resolve import resolve
from training.run.checkpoint import load_checkpoint
from training.run.network import inputs as network_inputs
from training.run.network import stage as network_stage
from training.run.network.choice import START, NetworkChoice
from training.run.network.data import Embed, NetworkData
from training.run.phases import Watcher
from training.run.prepare import ValidationRecords, prepare_validation
from training.run.run_folder import RunFolder
from training.run.train import train
from training.run.validate import embed_features

BACKBONE = "mobilenet_v3_small"


def network_config(**changes: Any) -> TrainConfig:
    """Two epochs of the last three blocks, after a short linear start."""
    small: dict[str, Any] = {
        "backbone": BACKBONE, "weights": "none", "resize": 40, "crop": 32, "embedding_dim": 8, "trial": False,
        "steps": 5, "unfreeze": "last-3", "network_epochs": 2, "network_batch_size": 16, "network_judge_every": 1,
        "network_crop": 32,
    }  # fmt: skip
    values = small | changes
    return resolve(**{name: value for name, value in values.items() if value is not None})


@pytest.fixture(scope="module")
def always_ships() -> Any:
    """Random weights learn little in two epochs: here what is trained ships all the same."""
    patch = pytest.MonkeyPatch()
    patch.setattr("training.run.network.choice._beats_frozen", lambda *_: True)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def network_run(
    pictures: Path, other_pictures: Path, cache: Path, always_ships: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One uninterrupted run whose network trained, with validation images. Not to be written to."""
    out = tmp_path_factory.mktemp("network") / "run"
    with _an_epoch_finds_more():
        train(pictures, out, config=network_config(), machine=make_machine(cache), val=other_pictures)
    return out


@contextmanager
def _an_epoch_finds_more() -> Iterator[None]:
    """As if it did: two epochs find no more than random weights do."""
    best = NetworkChoice.best

    def best_of_epochs(choice: NetworkChoice, names: Iterable[str]) -> str:
        return best(choice, [name for name in names if name != START])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NetworkChoice, "best", best_of_epochs)
        yield


@pytest.fixture(scope="module")
def start_run(
    pictures: Path, other_pictures: Path, cache: Path, always_ships: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, of which the start ships: two epochs make of random weights what is ill-conditioned."""
    out = tmp_path_factory.mktemp("start") / "run"
    train(pictures, out, config=network_config(), machine=make_machine(cache), val=other_pictures)
    return out


def _backbone(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "backbone.safetensors")[0]


def test_the_unfrozen_blocks_of_the_run_have_moved_and_no_others(network_run: Path, tmp_path: Path) -> None:
    start = load_backbone(BACKBONE, "none")
    moved = {
        name for name, tensor in start.network.state_dict().items()
        if not torch.equal(tensor, _backbone(network_run)[f"backbone.{name}"])
    }  # fmt: skip
    blocks = find_blocks(start, side=32)[-3:]
    expected = {
        f"{module}.{name}"
        for block in blocks
        for module in block.names
        for name, _ in start.network.get_submodule(module).named_parameters()
    }
    assert moved == expected


def test_what_ships_lies_half_way_between_the_start_and_the_trained_weights(
    network_run: Path, pictures: Path, cache: Path, tmp_path: Path
) -> None:
    config = network_config(network_share=1)
    with _an_epoch_finds_more():
        whole = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    half = json.loads((network_run / "report.json").read_text())["network"]
    assert half["weights"] == f"{whole['network']['weights']}, 0.5 of the way"
    start = load_backbone(BACKBONE, "none").network.state_dict()
    trained, shipped = _backbone(tmp_path / "run"), _backbone(network_run)
    assert any(not torch.equal(tensor, trained[f"backbone.{name}"]) for name, tensor in start.items())
    for name, tensor in start.items():
        middle = (tensor + trained[f"backbone.{name}"]) / 2
        torch.testing.assert_close(shipped[f"backbone.{name}"], middle.to(tensor.dtype))


def test_the_report_says_what_was_tried_and_what_ships(network_run: Path) -> None:
    report = json.loads((network_run / "report.json").read_text())
    network = report["network"]
    assert (network["method"], network["unfreeze"], network["precision"]) == ("proxy-anchor", "last-3", "float32")
    assert (network["blocks"], network["of_blocks"]) == (3, 14)
    assert network["decoded_bytes"] == 48 * 40 * 40 * 3
    assert network["held_out"] == {"unseen": 0, "seen": 4}
    assert network["trained_on"] == 44
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]
    assert {"average", "last"} < set(network["tried"])
    assert network["weights"].endswith(", 0.5 of the way")
    assert network["weights"] in network["tried"]
    assert report["method"] == "proxy-anchor"
    assert "network" in report["phases"]
    lines = [line for line in read_metrics(network_run) if line["phase"] == "network"]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(0 <= line["seen"] <= 1 for line in lines)


def test_validation_is_asked_with_the_trained_network_and_baselines_with_the_frozen_one(
    network_run: Path, pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path
) -> None:
    config = network_config(unfreeze="none", **dict.fromkeys(
        ("network_epochs", "network_batch_size", "network_judge_every", "network_crop")))  # fmt: skip
    frozen = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache), val=other_pictures)
    report = json.loads((network_run / "report.json").read_text())
    frozen_head = report["baselines"].pop("frozen head")
    assert frozen_head["recall"] == frozen["val"]["recall"]
    assert report["baselines"] == frozen["baselines"]
    run = RunFolder.open(network_run)
    backbone, head, _ = run.load_trained()
    extractor = Extractor(backbone, run.preprocess(), device=torch.device("cpu"), precision="float32")
    records = ValidationRecords(list_dataset(other_pictures).records)
    prepared = prepare_validation(records, machine=make_machine(tmp_path / "new"), extractor=extractor,
                                  watcher=Watcher())  # fmt: skip
    assert prepared is not None
    recall = prepared[0].score(embed_features(head, prepared[0].features)).recall
    assert {int(k): value for k, value in report["val"]["recall"].items()} == pytest.approx(recall)


@pytest.mark.slow
def test_a_run_whose_network_trained_exports_audits_and_agrees(
    start_run: Path, cache: Path, tmp_path: Path
) -> None:
    assert export_run(start_run, tmp_path / "model.onnx").min_cosine >= MIN_COSINE
    embedder = Embedder(tmp_path / "model.onnx")
    assert (embedder.contract.method, embedder.contract.embedding_dim) == ("proxy-anchor", 8)
    run = RunFolder.open(start_run)
    assert isinstance(run.load_trained()[1], ProjectionHead)
    audit = audit_labels(run, machine=make_machine(cache))
    assert len(audit.images) == 48


@pytest.mark.parametrize("epoch", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_stage_goes_on_to_the_same_bits(
    network_run: Path, pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path, epoch: int
) -> None:
    config, machine, out = network_config(), make_machine(cache), tmp_path / "run"
    with pytest.raises(InterruptionError):
        train(pictures, out, config=config, machine=machine, val=other_pictures,
              watcher=interrupt_at("network", epoch))  # fmt: skip
    with _an_epoch_finds_more():
        report = train(pictures, out, config=config, machine=machine, val=other_pictures, resume=True)
    assert weights(out) == weights(network_run)
    assert figures(out) == figures(network_run)
    assert weights(out, "backbone") == weights(network_run, "backbone")
    assert report["val"] == json.loads((network_run / "report.json").read_text())["val"]


@pytest.mark.slow
def test_a_stage_interrupted_after_every_epoch_keeps_beliefs_and_averages(
    pictures: Path, cache: Path, tmp_path: Path, always_ships: None
) -> None:
    changes: dict[str, Any] = {"method": "spa", "confidences": "leave-one-out",
                               "network_batch_norm": "train", "unfreeze": "all"}  # fmt: skip
    config, machine = network_config(**changes), make_machine(cache)
    train(pictures, tmp_path / "whole", config=config, machine=machine)
    for epoch in (1, 2):
        with pytest.raises(InterruptionError):
            train(pictures, tmp_path / "run", config=config, machine=machine, resume=epoch > 1,
                  watcher=interrupt_at("network", epoch))  # fmt: skip
    train(pictures, tmp_path / "run", config=config, machine=machine, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
import training.run.network.choice as choice
from tests.training.conftest import make_machine
from tests.training.run.network.test_stage import network_config
from training.run.phases import Watcher
from training.run.train import train
choice._beats_frozen = lambda *_: True
def on_epoch(report):
    if (report.phase, report.epoch) == ("network", 2):
        os.kill(os.getpid(), signal.SIGKILL)
data, out, cache, val = map(Path, sys.argv[1:])
train(data, out, config=network_config(), machine=make_machine(cache), val=val, watcher=Watcher(on_epoch=on_epoch))
"""


@pytest.mark.slow
def test_a_killed_stage_leaves_a_run_that_goes_on_to_the_same_bits(
    network_run: Path, pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = [str(path) for path in (pictures, out, cache, other_pictures)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "head.safetensors").exists()
    with _an_epoch_finds_more():
        train(pictures, out, config=network_config(), machine=make_machine(cache), val=other_pictures, resume=True)
    assert weights(out) == weights(network_run)
    assert weights(out, "backbone") == weights(network_run, "backbone")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_network_trains_in_the_faster_precision_and_goes_on_after_a_stop(
    pictures: Path, tmp_path: Path, always_ships: None
) -> None:
    machine = make_machine(tmp_path / "cache", device=torch.device("cuda"), precision="auto", workers=4)
    config = network_config(unfreeze="all")
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=config, machine=machine, watcher=interrupt_at("network", 1))
    report = train(pictures, tmp_path / "run", config=config, machine=machine, resume=True)
    assert report["network"]["precision"] in ("float32", "bfloat16")
    assert [epoch["epoch"] for epoch in report["network"]["epochs"]] == [0, 1, 2]
    assert all(np.isfinite(epoch["loss"]) for epoch in report["network"]["epochs"][1:])


def test_images_held_out_never_train(pictures: Path, cache: Path, tmp_path: Path, monkeypatch) -> None:
    drawn: set[int] = set()
    splits = []

    def draw(pixels, rows, windows, **others):
        drawn.update(rows.tolist())
        return real(pixels, rows, windows, **others)

    def split(*arguments, **others):
        splits.append(real_split(*arguments, **others))
        return splits[-1]

    real, real_split = network_inputs.cut_windows, network_stage.split_for_network
    monkeypatch.setattr(network_inputs, "cut_windows", draw)
    monkeypatch.setattr(network_stage, "split_for_network", split)
    train(pictures, tmp_path / "run", config=network_config(), machine=make_machine(cache))
    assert drawn == set(splits[0].train.tolist())
    assert len(splits[0].seen) == 4
    assert not drawn & set(splits[0].seen.tolist())


def test_where_the_frozen_embedding_finds_more_it_ships_and_the_backbone_is_the_start(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("training.run.network.choice._beats_frozen", lambda *_: False)
    frozen_only = network_config(unfreeze="none", **dict.fromkeys(
        ("network_epochs", "network_batch_size", "network_judge_every", "network_crop")))  # fmt: skip
    machine = make_machine(cache)
    train(pictures, tmp_path / "plain", config=frozen_only, machine=machine)
    report = train(pictures, tmp_path / "run", config=network_config(), machine=machine)
    assert (report["network"]["ships"], report["method"]) == (False, "proxy-nca")
    assert weights(tmp_path / "run") == weights(tmp_path / "plain")
    start, kept = _backbone(tmp_path / "plain"), _backbone(tmp_path / "run")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in start.items())


def test_where_no_epoch_finds_more_the_start_ships_and_is_called_so(
    pictures: Path, cache: Path, tmp_path: Path, always_ships: None, monkeypatch
) -> None:
    judged = []

    def score(self: NetworkData, embed: Embed) -> dict[str, float]:
        judged.append(self)
        return {
            "seen": 0.9 if len(judged) in (1, 6) else 0.1
        }  # the start, then after both epochs, average and last

    monkeypatch.setattr(NetworkData, "score", score)
    report = train(pictures, tmp_path / "run", config=network_config(), machine=make_machine(cache))
    assert report["network"]["weights"] == "start"
    assert list(report["network"]["tried"]) == ["average", "last", "start", "start, head refitted"]
    kept = _backbone(tmp_path / "run")
    for name, tensor in load_backbone(BACKBONE, "none").network.state_dict().items():
        assert torch.equal(tensor, kept[f"backbone.{name}"])


def test_what_ships_has_to_find_more_than_the_frozen_embedding() -> None:
    choice = NetworkChoice({"average": {"unseen": 0.5, "seen": 0.7}, "frozen": {"unseen": 0.6, "seen": 0.5}})
    assert choice.best(choice.tried) == "average"
    assert choice.best(["frozen", "average"]) == "average"
    equal = NetworkChoice({"average": {"seen": 0.5}, "last": {"seen": 0.5}})
    assert equal.best(equal.tried) == "average", "the first of equals"


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "procsim", "network_judge_every": None},
        {"method": "spa", "recipe": "paper", "steps": None, "epochs": 1, "confidence_epochs": 1},
        {"method": "pca", "steps": None, "trial": None},
        {"backbone": "squeezenet1_1", "view": "both", "pooling": "layers", "resize": 48, "crop": 40,
         "network_crop": 36},
        *(
            pytest.param(changes, marks=pytest.mark.slow)
            for changes in (
                {"method": "multi-similarity"},
                {"method": "proxy-nca", "unfreeze": "all"},
                {"method": "class-whitened", "steps": None, "trial": None, "network_method": "triplet"},
                {"view": "whole", "resize": None, "network_crop": 24},
                {"min_confidence": 0.05},
                {"embedding_dim": 60, "start": "random", "method": "proxy-anchor"},
            )
        ),
    ],
)  # fmt: skip
def test_every_kind_of_run_can_train_its_network(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path, always_ships: None, changes: dict[str, Any]
) -> None:
    """Methods of proxies and of pairs, judges of either kind, rivals, views and poolings; one epoch each."""
    config = network_config(network_epochs=1, **changes)
    out = tmp_path / "run"
    report = train(pictures, out, config=config, machine=make_machine(cache), val=other_pictures)
    assert report["method"] == report["network"]["method"] == config.network_loss.method
    run = RunFolder.open(out)
    backbone, head, state = run.load_trained()
    assert head.embedding_dim == config.embedding.embedding_dim == state["embedding_dim"]
    assert np.isfinite(report["network"]["epochs"][1]["loss"])
    assert backbone.view == config.input.view


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_convnext", f"open_clip:{VIT}"])
def test_the_last_block_of_a_network_of_another_library_trains_and_exports(
    name: str, pictures: Path, cache: Path, tmp_path: Path, always_ships: None, small_towers: None
) -> None:
    config = network_config(backbone=name, resize=72, crop=64, unfreeze="last-1", network_epochs=1,
                            network_crop=None)  # fmt: skip
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    assert report["network"]["blocks"] == 1
    start = load_backbone(name, "none", side=64)
    state, (block,) = start.network.state_dict(), find_blocks(start, side=64)[-1:]
    tensors, _ = load_checkpoint(tmp_path / "run" / "checkpoints" / "network.safetensors")
    mark = "average/backbone."  # what ships may be the start itself
    trained = {key.removeprefix(mark): tensor for key, tensor in tensors.items() if key.startswith(mark)}
    assert sorted(map(id, block.parameters(start.network))) == sorted(
        id(start.network.get_parameter(k)) for k in trained
    )
    assert all(not torch.equal(tensor, state[key]) for key, tensor in trained.items() if key.endswith("weight"))
    assert export_run(tmp_path / "run", tmp_path / "m.onnx").min_cosine >= MIN_COSINE


def test_more_blocks_than_there_are_are_refused_before_any_work(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="last-15: --backbone mobilenet_v3_small has 14 blocks"):
        train(pictures, tmp_path / "run", config=network_config(unfreeze="last-15"),
              machine=make_machine(tmp_path / "cache"))  # fmt: skip
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


def test_a_smaller_size_to_train_at_has_to_be_one_that_the_backbone_takes(pictures: Path, tmp_path: Path) -> None:
    config = network_config(backbone="vit_b_32", resize=224, crop=224, network_crop=160)
    with pytest.raises(InputError, match="vit_b_32 cannot take images of --network-crop 160 pixels"):
        train(pictures, tmp_path / "run", config=config, machine=make_machine(tmp_path / "cache"))


def test_a_resume_with_other_rates_is_refused_by_name(pictures: Path, cache: Path, tmp_path: Path) -> None:
    machine, out = make_machine(cache), tmp_path / "run"
    with pytest.raises(InterruptionError):
        train(pictures, out, config=network_config(), machine=machine, watcher=interrupt_at("embedding", 1))
    with pytest.raises(RunError, match=r"network_lr was 0.001, is 0.1"):
        train(pictures, out, config=network_config(network_lr=0.1), machine=machine, resume=True)


def test_the_precision_that_was_measured_is_kept_for_a_resume(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    asked = []

    def choose(model, images):
        asked.append(images.shape)
        return "bfloat16"

    monkeypatch.setattr("training.run.network.blocks.choose_precision", choose)
    machine, out = replace(make_machine(cache), precision="auto"), tmp_path / "run"
    with pytest.raises(InterruptionError):
        train(pictures, out, config=network_config(), machine=machine, watcher=interrupt_at("network", 1))
    report = train(pictures, out, config=network_config(), machine=machine, resume=True)
    assert asked == [(16, 32, 32, 3)]
    assert report["network"]["precision"] == "bfloat16"
