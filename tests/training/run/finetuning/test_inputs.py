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
from training.network.decoded_images import MappedArray
from training.network.kept_inputs import KeptInputs
from training.network.model import NetworkModel
from training.options.config import TrainConfig
from training.run.finetuning import stage as network_stage
from training.run.finetuning.inputs import FinetuneInputs, build_model, keep_inputs, plan_blocks
from training.run.phases import Watcher
from training.run.train import train

BACKBONE = "mobilenet_v3_small"  # whose last blocks keep less than its images


def kept_config(**changes: Any) -> TrainConfig:
    """Four epochs that take turns with two kept views."""
    return network_config(**{"backbone": BACKBONE, "cached_views": 2, "epochs": 4} | changes)


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
    assert network["kept_views"] == 2
    # The last three blocks take 96 maps of a pixel: of 44 images in two views, of 48 in one.
    sizes = [file.stat().st_size for file in (kept_run[1] / "inputs").iterdir()]
    assert network["kept_bytes"] == sum(sizes) == (2 * 44 + 48) * 96 * 2 < network["decoded_bytes"]


def test_runs_with_the_same_views_and_weights_share_what_is_kept(kept_run, trainer, fronts) -> None:
    others: dict[str, Any] = {"lr": 1e-4, "epochs": 3}
    report = trainer("same", config=kept_config(**others), machine=make_machine(kept_run[1]))
    assert report["finetuning"]["kept_views"] == 2
    assert fronts == []
    trainer("other", config=kept_config(**others, seed=1), machine=make_machine(kept_run[1]))
    assert sum(fronts) == 2 * 44 + 48, "of another seed are the random weights, too"


def test_a_run_interrupted_while_inputs_are_kept_keeps_the_rest(kept_run, trainer, fronts) -> None:
    options = {"config": kept_config(), "machine": make_machine(trainer.folder / "cache")}
    trainer(stop=("views through the frozen blocks", 64), **options)
    assert fronts == [32, 32]
    trainer(resume=True, **options)
    assert sum(fronts) == 2 * 44 + 48
    assert trainer.weights() == weights(kept_run[0])
    files = list((trainer.folder / "cache" / "inputs").iterdir())
    assert len(files) == 2
    assert all(file.read_bytes() == (kept_run[1] / "inputs" / file.name).read_bytes() for file in files)


def _keep(config: TrainConfig, cache: Path) -> tuple[NetworkModel, Extractor, np.ndarray, FinetuneInputs]:
    """Model, extractor and decoded pixels of 70 images, and the inputs where the first 50 train."""
    backbone = load_backbone(BACKBONE, "none", seed=1)
    extractor = Extractor(backbone, PreprocessConfig(40, 32), device=torch.device("cpu"), precision="float32")
    pixels = np.random.default_rng(0).integers(256, size=(70, 40, 40, 3), dtype=np.uint8)
    blocks = plan_blocks(backbone, config, side=32)
    model = build_model(extractor, ProjectionHead(torch.eye(8, 576), torch.zeros(8)), blocks, config=config)
    inputs = keep_inputs(model, extractor, blocks, pixels, np.arange(50), hashes=[str(n) for n in range(70)],
                         config=config, machine=make_machine(cache), watcher=Watcher())  # fmt: skip
    return model, extractor, pixels, inputs


def test_kept_or_not_features_are_those_of_the_weights_as_they_are_now_and_epochs_take_turns(tmp_path) -> None:
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
    first, second, fourth = (
        inputs.draw(torch.tensor([3, 49]), epoch=epoch, generator=torch.Generator()) for epoch in (1, 2, 4)
    )
    assert second.shape == (2, 1, 96, 1, 1)
    assert not torch.equal(second, first)
    assert torch.equal(second, fourth)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"finetune": "all"}, (False, 0)),
        ({"cached_views": 0}, (True, 0)),
        ({"cached_views": 4}, (True, 0)),  # as many as epochs: no pass is saved
        ({"finetune": "last-13"}, (False, 0)),  # its input is larger than the image
        ({"finetune": "last-12", "cached_views": 3}, (True, 0)),  # so are those of three views
        ({"batch_norm": "train"}, (True, 2)),
    ],
)  # fmt: skip
def test_what_takes_more_room_than_the_decoded_images_or_saves_no_pass_is_not_kept(
    changes: dict[str, Any], kept: tuple[bool, int], tmp_path: Path
) -> None:
    inputs = _keep(kept_config(**changes), tmp_path)[-1]
    assert (inputs.kept_bytes > 0, inputs.kept_views) == kept


def test_inputs_that_the_disk_cannot_take_are_refused(trainer: Trainer, monkeypatch) -> None:
    options = {"config": kept_config(), "machine": make_machine(trainer.folder / "cache")}
    trainer(stop=("embedding", 1), **options)
    free, real = decoded_images.shutil.disk_usage("/")._replace(free=20_000), network_stage.decode_images

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


def _draw(inputs: FinetuneInputs, *, epoch: int = 1) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """All batches, and what the generator gives afterwards."""
    generator = torch.Generator().manual_seed(3)
    return list(inputs.draw_each(BATCHES, epoch=epoch, generator=generator)), torch.rand(4, generator=generator)


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


def test_threads_take_kept_views_too(extractor: Extractor, tmp_path: Path) -> None:
    kept = KeptInputs(None, MappedArray(tmp_path / "kept", (80, 2), "float16"), np.arange(40))  # type: ignore[arg-type]
    values = np.random.default_rng(1).random((80, 2)).astype(np.float16)
    kept.array.fill(lambda done: (part for part in [values[done:]]))
    inputs = [FinetuneInputs(extractor, PIXELS, side=16, threads=threads) for threads in (0, 2)]
    for one in inputs:
        one.take_kept(kept, None)
    (plain, _), (ahead, _) = (_draw(one, epoch=2) for one in inputs)
    for (rows, views), (_, others) in zip(plain, ahead, strict=True):
        assert torch.equal(views, torch.from_numpy(values[40 + rows.numpy()]))
        assert torch.equal(views, others)


def test_threads_end_with_the_one_who_asked(extractor: Extractor) -> None:
    drawn = FinetuneInputs(extractor, PIXELS, side=16, threads=2).draw_each(
        iter(BATCHES), epoch=1, generator=torch.Generator()
    )
    next(drawn)
    drawn.close()
    assert list(drawn) == []
