"""Kept inputs in whole runs: the front runs once, runs share what it gave, an interrupted run ends in the same bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from tests.training.conftest import Trainer, make_machine
from tests.training.run.finetuning.test_stage import network_config
from tests.training.runs import weights
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.network import decoded_images, kept_inputs
from training.network.model import NetworkModel
from training.options.config import TrainConfig
from training.run.finetuning import stage as network_stage
from training.run.finetuning.inputs import FinetuneInputs, build_model, keep_centres, plan_blocks
from training.run.phases import Watcher
from training.run.train import train

BACKBONE = "mobilenet_v3_small"  # whose last blocks keep less than its images


def kept_config(**changes: Any) -> TrainConfig:
    return network_config(**{"backbone": BACKBONE, "epochs": 2} | changes)


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


def test_what_is_kept_has_the_size_that_the_report_says(kept_run: tuple[Path, Path]) -> None:
    network = json.loads((kept_run[0] / "report.json").read_text())["finetuning"]
    (file,) = (kept_run[1] / "inputs").iterdir()
    # The last three blocks take 96 maps of a pixel, of 48 images.
    assert network["kept_bytes"] == file.stat().st_size == 48 * 96 * 2 < network["decoded_bytes"]


def test_runs_with_the_same_weights_share_what_is_kept(kept_run, trainer, fronts) -> None:
    others: dict[str, Any] = {"lr": 1e-4, "epochs": 1}
    trainer("same", config=kept_config(**others), machine=make_machine(kept_run[1]))
    assert fronts == []
    trainer("other", config=kept_config(**others, seed=1), machine=make_machine(kept_run[1]))
    assert sum(fronts) == 48, "of another seed are the random weights, too"


def test_a_run_interrupted_while_inputs_are_kept_keeps_the_rest(kept_run, trainer, fronts) -> None:
    options = {"config": kept_config(), "machine": make_machine(trainer.folder / "cache")}
    trainer(stop=("centres through the frozen blocks", 32), **options)
    assert fronts == [32]
    trainer(resume=True, **options)
    assert sum(fronts) == 48
    assert trainer.weights() == weights(kept_run[0])
    files = list((trainer.folder / "cache" / "inputs").iterdir())
    assert len(files) == 1
    assert all(file.read_bytes() == (kept_run[1] / "inputs" / file.name).read_bytes() for file in files)


def _keep(config: TrainConfig, cache: Path) -> tuple[NetworkModel, Extractor, np.ndarray, FinetuneInputs]:
    """Model, extractor and decoded pixels of 70 images, and the inputs."""
    backbone = load_backbone(BACKBONE, "none", seed=1)
    extractor = Extractor(backbone, PreprocessConfig(40, 32), device=torch.device("cpu"), precision="float32")
    pixels = np.random.default_rng(0).integers(256, size=(70, 40, 40, 3), dtype=np.uint8)
    blocks = plan_blocks(backbone, config, side=32)
    model = build_model(extractor, ProjectionHead(torch.eye(8, 576), torch.zeros(8)), blocks, config=config)
    hashes = [str(n) for n in range(70)]
    centre = keep_centres(extractor, blocks, pixels, hashes=hashes, config=config, cache=cache, watcher=Watcher())
    return model, extractor, pixels, FinetuneInputs(extractor, pixels, side=32, centre=centre)


def test_kept_or_not_features_are_those_of_the_weights_as_they_are_now(tmp_path) -> None:
    model, extractor, pixels, inputs = _keep(kept_config(), tmp_path)
    assert list(model.convolutions)  # whose quicker ways give the same features
    for moved in (False, True):
        if moved:
            for parameters in model.levels:
                torch.nn.init.uniform_(parameters[0].data)
        order = np.array([69, 3, *range(10, 50)])
        found = inputs.read_features(order)
        expected = extractor.extract(pixels[order, 4:36, 4:36])
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.002 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"finetune": "all"}, False),
        ({"finetune": "last-13"}, False),  # its input is larger than the image
    ],
)
def test_what_outgrows_the_decoded_images_is_not_kept(changes: dict[str, Any], kept: bool, tmp_path: Path) -> None:
    assert (_keep(kept_config(**changes), tmp_path)[-1].kept_bytes > 0) == kept


def test_inputs_that_the_disk_cannot_take_are_refused(trainer: Trainer, monkeypatch) -> None:
    options = {"config": kept_config(), "machine": make_machine(trainer.folder / "cache")}
    trainer(stop=("embedding", 1), **options)
    free, real = decoded_images.shutil.disk_usage("/")._replace(free=8_000), network_stage.decode_images

    def decode(*arguments, **others):
        pixels = real(*arguments, **others)
        monkeypatch.setattr(decoded_images.shutil, "disk_usage", lambda _: free)
        return pixels

    monkeypatch.setattr(network_stage, "decode_images", decode)
    with pytest.raises(InputError, match=r"cached outputs of the frozen blocks take 0\.0 GB"):
        trainer(resume=True, **options)


PIXELS = np.random.default_rng(0).integers(256, size=(40, 24, 24, 3), dtype=np.uint8)
BATCHES = list(torch.randperm(40, generator=torch.Generator().manual_seed(1)).split(7))


@pytest.fixture
def extractor() -> Extractor:
    backbone = load_backbone("squeezenet1_1", "none")
    return Extractor(backbone, PreprocessConfig(24, 16), device=torch.device("cpu"), precision="float32")


def _draw(inputs: FinetuneInputs) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """All batches, and what the generator gives afterwards."""
    generator = torch.Generator().manual_seed(3)
    return list(inputs.draw_each(BATCHES, generator=generator)), torch.rand(4, generator=generator)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_draw_the_views_that_are_drawn_without_them(extractor: Extractor, threads: int) -> None:
    plain, plain_next = _draw(FinetuneInputs(extractor, PIXELS, side=16))
    ahead, ahead_next = _draw(FinetuneInputs(extractor, PIXELS, side=16, threads=threads))
    assert len(plain) == len(ahead) == len(BATCHES)
    for (rows, views), (other_rows, other_views) in zip(plain, ahead, strict=True):
        assert torch.equal(rows, other_rows)
        assert views.shape == (len(rows), 16, 16, 3)
        assert torch.equal(views, other_views)
    assert torch.equal(plain_next, ahead_next)


def test_threads_end_with_the_one_who_asked(extractor: Extractor) -> None:
    drawn = FinetuneInputs(extractor, PIXELS, side=16, threads=2).draw_each(iter(BATCHES), generator=torch.Generator())
    next(drawn)
    drawn.close()
    assert list(drawn) == []
