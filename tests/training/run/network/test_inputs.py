"""Kept inputs in whole runs: the front runs once, runs share what it gave, an interrupted run ends in the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from tests.training.conftest import make_machine
from tests.training.run.network.test_stage import BACKBONE, network_config
from tests.training.runs import InterruptionError, figures, interrupt_at, weights
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.network import kept_inputs, mapped_files
from training.options.config import TrainConfig
from training.run.network import stage as network_stage
from training.run.network.blocks import build_model, plan_blocks
from training.run.network.inputs import keep_inputs, plan_inputs
from training.run.phases import Watcher
from training.run.train import train


def kept_config(**changes: Any) -> TrainConfig:
    """Four epochs that take turns with two kept views."""
    return network_config(**{"network_views": 2, "network_epochs": 4} | changes)


@pytest.fixture(scope="module")
def kept_run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An uninterrupted run, and its cache. Not to be written to."""
    folder = tmp_path_factory.mktemp("kept")
    train(pictures, folder / "run", config=kept_config(), machine=make_machine(folder / "cache"))
    return folder / "run", folder / "cache"


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images of every pass through a front whose output is kept."""
    passes: list[int] = []
    keep: Callable[..., Any] = kept_inputs.KeptInputs._keep

    def counted(self, images, dtype):
        passes.append(len(images))
        return keep(self, images, dtype)

    monkeypatch.setattr(kept_inputs.KeptInputs, "_keep", counted)
    return passes


def test_what_is_kept_is_told_beforehand_with_its_size(pictures: Path, cache: Path, tmp_path: Path) -> None:
    told: list[str] = []
    machine = make_machine(tmp_path / "cache")
    report = train(pictures, tmp_path / "run", config=kept_config(network_epochs=3), machine=machine,
                   watcher=Watcher(on_note=told.append, on_images=lambda what, *_: told.append(what)))  # fmt: skip
    files = list((tmp_path / "cache" / "inputs").iterdir())
    network = report["network"]
    assert network["kept_views"] == 2
    # The last three blocks take 96 maps of a pixel: of 44 images in two views, of 48 in one.
    assert network["kept_bytes"] == sum(file.stat().st_size for file in files) == (2 * 44 + 48) * 96 * 2
    assert network["kept_bytes"] < network["decoded_bytes"]
    note = "network: of 2 random views of an image and the centre that it is judged by the frozen blocks run once"
    (told_at,) = [place for place, text in enumerate(told) if text.startswith(note)]
    assert told_at < told.index("views through the frozen blocks")


def test_runs_with_the_same_views_and_weights_share_what_is_kept(
    kept_run: tuple[Path, Path], pictures: Path, tmp_path: Path, fronts: list[int]
) -> None:
    machine = make_machine(kept_run[1])
    others: dict[str, Any] = {"network_lr": 1e-4, "network_epochs": 3}
    report = train(pictures, tmp_path / "same", config=kept_config(**others), machine=machine)
    assert report["network"]["kept_views"] == 2
    assert fronts == []
    train(pictures, tmp_path / "other", config=kept_config(**others, seed=1), machine=machine)
    assert sum(fronts) == 2 * 44 + 48, "of another seed are the random weights, too"


@pytest.mark.parametrize("epoch", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupted_run_on_kept_inputs_goes_on_to_the_same_bits(
    kept_run: tuple[Path, Path], pictures: Path, tmp_path: Path, epoch: int
) -> None:
    out, machine = tmp_path / "run", make_machine(tmp_path / "cache")
    with pytest.raises(InterruptionError):
        train(pictures, out, config=kept_config(), machine=machine, watcher=interrupt_at("network", epoch))
    train(pictures, out, config=kept_config(), machine=machine, resume=True)
    assert weights(out) == weights(kept_run[0])
    assert figures(out) == figures(kept_run[0])
    assert weights(out, "backbone") == weights(kept_run[0], "backbone")


def test_a_run_interrupted_while_inputs_are_kept_keeps_the_rest(
    kept_run: tuple[Path, Path], pictures: Path, tmp_path: Path, fronts: list[int], monkeypatch
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if (what, done) == ("views through the frozen blocks", 64):
            raise InterruptionError

    out, machine = tmp_path / "run", make_machine(tmp_path / "cache")
    with pytest.raises(InterruptionError):
        train(pictures, out, config=kept_config(), machine=machine, watcher=Watcher(on_images=interrupt))
    assert fronts == [32, 32]
    train(pictures, out, config=kept_config(), machine=machine, resume=True)
    assert sum(fronts) == 2 * 44 + 48
    assert weights(out) == weights(kept_run[0])
    files = list((tmp_path / "cache" / "inputs").iterdir())
    assert len(files) == 2
    for file in files:
        assert file.read_bytes() == (kept_run[1] / "inputs" / file.name).read_bytes()


def test_epochs_take_turns_with_the_views_that_are_kept(pictures: Path, tmp_path: Path, monkeypatch) -> None:
    taken: list[tuple[int, int]] = []
    take: Callable[..., Any] = kept_inputs.KeptInputs.take

    def noted(self, opened, rows, *, view):
        if self.views == 2:
            taken.append((view, len(rows)))
        return take(self, opened, rows, view=view)

    monkeypatch.setattr(kept_inputs.KeptInputs, "take", noted)
    train(
        pictures, tmp_path / "run", config=kept_config(network_epochs=3), machine=make_machine(tmp_path / "cache")
    )
    views = [view for view, _ in taken]
    assert views == sorted(views[: len(views) // 3]) + [1] * (len(views) // 3) + [0] * (len(views) // 3)
    assert sum(count for _, count in taken) == 3 * 44


def test_kept_or_not_features_are_those_of_the_weights_as_they_are_now(tmp_path: Path) -> None:
    extractor = Extractor(
        load_backbone(BACKBONE, "none", seed=1),
        PreprocessConfig(40, 32),
        device=torch.device("cpu"),
        precision="float32",
    )
    pixels = np.random.default_rng(0).integers(256, size=(70, 40, 40, 3), dtype=np.uint8)
    config, rows = kept_config(), np.arange(50)
    blocks, _ = plan_blocks(extractor, config)
    model = build_model(extractor, ProjectionHead(torch.eye(8, 576), torch.zeros(8)), blocks, config=config)
    assert list(model.convolutions)  # whose quicker ways give the same features
    plan = plan_inputs(model, extractor, blocks, pixels, rows, hashes=[str(n) for n in range(70)], config=config,
                       cache=tmp_path)  # fmt: skip
    inputs = keep_inputs(plan, model, extractor, pixels, config=config, on_images=lambda *_: None)
    for moved in (False, True):
        if moved:
            for parameters in model.levels:
                torch.nn.init.uniform_(parameters[0].data)
        order = np.array([69, 3, *range(10, 50)])
        found = inputs.read_features(order)
        expected = extractor.extract(pixels[order, 4:36, 4:36])
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.002 * float(expected.abs().max()))
    drawn = inputs.draw(torch.tensor([3, 49]), epoch=2, generator=torch.Generator())
    assert drawn.shape == (2, 1, 96, 1, 1)
    assert not torch.equal(drawn, inputs.draw(torch.tensor([3, 49]), epoch=1, generator=torch.Generator()))
    assert torch.equal(drawn, inputs.draw(torch.tensor([3, 49]), epoch=4, generator=torch.Generator()))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"unfreeze": "all"}, (False, 0)),
        ({"network_views": 0}, (True, 0)),
        ({"network_views": 4}, (True, 0)),  # as many as epochs: no pass is saved
        ({"unfreeze": "last-13"}, (False, 0)),  # its input is larger than the image
        ({"unfreeze": "last-12", "network_views": 3}, (True, 0)),  # so are those of three views
        ({"network_batch_norm": "train"}, (True, 2)),
        ({"network_chunk": 8}, (True, 2)),
    ],
)  # fmt: skip
def test_what_takes_more_room_than_the_decoded_images_or_saves_no_pass_is_not_kept(
    changes: dict[str, Any], kept: tuple[bool, int], tmp_path: Path
) -> None:
    backbone = load_backbone(BACKBONE, "none")
    extractor = Extractor(backbone, PreprocessConfig(40, 32), device=torch.device("cpu"), precision="float32")
    pixels = np.random.default_rng(0).integers(256, size=(48, 40, 40, 3), dtype=np.uint8)
    config = kept_config(**changes)
    blocks, _ = plan_blocks(extractor, config)
    model = build_model(extractor, ProjectionHead(torch.eye(8, 576), torch.zeros(8)), blocks, config=config)
    plan = plan_inputs(model, extractor, blocks, pixels, np.arange(44), hashes=[str(n) for n in range(48)],
                       config=config, cache=tmp_path)  # fmt: skip
    assert (plan.bytes > 0, 0 if plan.views is None else plan.views.views) == kept


def test_inputs_that_the_disk_cannot_take_are_refused(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch
) -> None:
    machine = make_machine(tmp_path / "cache")
    with pytest.raises(InterruptionError):
        train(
            pictures, tmp_path / "run", config=kept_config(), machine=machine, watcher=interrupt_at("embedding", 1)
        )
    free = mapped_files.shutil.disk_usage(tmp_path)._replace(free=20_000)
    real = network_stage.decode_images

    def decode(*arguments, **others):
        pixels = real(*arguments, **others)
        monkeypatch.setattr(mapped_files.shutil, "disk_usage", lambda _: free)
        return pixels

    monkeypatch.setattr(network_stage, "decode_images", decode)
    with pytest.raises(InputError, match=r"inputs of the blocks that train, kept for all epochs, take 0\.0 GB"):
        train(pictures, tmp_path / "run", config=kept_config(), machine=machine, resume=True)
