"""Views of batch after batch: threads that draw them ahead change nothing but the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from index.images.preprocess import PreprocessConfig
from tests.training.conftest import BACKBONE, make_machine
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.network.kept_inputs import KeptInputs
from training.network.mapped_files import MappedArray
from training.run.network.inputs import NetworkInputs

PIXELS = np.random.default_rng(0).integers(256, size=(40, 24, 24, 3), dtype=np.uint8)
BATCHES = list(torch.randperm(40, generator=torch.Generator().manual_seed(1)).split(7))


@pytest.fixture
def extractor() -> Extractor:
    backbone = load_backbone(BACKBONE, "none")
    return Extractor(backbone, PreprocessConfig(24, 16), device=torch.device("cpu"), precision="float32")


def _draw(
    inputs: NetworkInputs, *, epoch: int = 1
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """All batches, and what the generator gives afterwards."""
    generator = torch.Generator().manual_seed(3)
    return list(inputs.draw_each(BATCHES, epoch=epoch, generator=generator)), torch.rand(4, generator=generator)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_draw_the_views_that_are_drawn_without_them(extractor: Extractor, threads: int) -> None:
    plain, plain_next = _draw(NetworkInputs(extractor, PIXELS, side=16))
    ahead, ahead_next = _draw(NetworkInputs(extractor, PIXELS, side=16, threads=threads))
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
    plain, _ = _draw(NetworkInputs(extractor, PIXELS, side=16, views=kept), epoch=2)
    ahead, _ = _draw(NetworkInputs(extractor, PIXELS, side=16, views=kept, threads=2), epoch=2)
    for (rows, views), (_, others) in zip(plain, ahead, strict=True):
        assert torch.equal(views, torch.from_numpy(values[40 + rows.numpy()]))
        assert torch.equal(views, others)


def test_threads_end_with_the_one_who_asked(extractor: Extractor) -> None:
    drawn = NetworkInputs(extractor, PIXELS, side=16, threads=2).draw_each(
        iter(BATCHES), epoch=1, generator=torch.Generator()
    )
    next(drawn)
    drawn.close()
    assert list(drawn) == []


def test_threads_draw_only_where_a_gpu_trains(tmp_path: Path) -> None:
    assert make_machine(tmp_path, workers=8).drawing_threads == 0
    assert make_machine(tmp_path, workers=8, device=torch.device("cuda")).drawing_threads == 8
