"""What processes share, in one of those that torchrun has started, or alone.

python -m tests.training.run.shared_work OUT PICTURES: rank 0 writes what came of it to OUT.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.errors import InputError
from training.backbone.backbones import Backbone, load_backbone
from training.backbone.extract import Extractor
from training.data.datasets import Record
from training.head.embedding_heads import ProjectionHead
from training.losses.interface import build_loss
from training.options.backbone_libraries import preprocess_for
from training.options.machine import Machine
from training.options.resolve import resolve
from training.run import distributed
from training.run.checkpoint import save_checkpoint
from training.run.distributed import ProcessRank, Team, join_processes
from training.run.features import extract_together
from training.run.finetuning.budget import Budget
from training.run.finetuning.data import FinetuneData, read_together
from training.run.finetuning.fit import FinetuneLoop
from training.run.finetuning.inputs import FinetuneInputs, build_model, plan_blocks
from training.run.holdout import Split
from training.run.phases import FINETUNING, PhaseContext, phase_generator

CPU = torch.device("cpu")
CLASSES, IMAGES, SIDE = 3, 13, 12
BATCHES = ((0, 5), (5, 10), (10, 12), (12, 13), (0, 13))  # shares are uneven, and of one image some have none
CASES: dict[str, dict[str, Any]] = {
    "proxy-anchor": {"method": "proxy-anchor"},
    "spa": {"method": "spa"},
    "in chunks": {"method": "proxy-nca", "micro_batch_size": 2},
    "pairs": {"method": "multi-similarity"},
}


class _Small(nn.Module):
    """Two convolutions, one with a batch norm, and a parameter that no pass reads, as a mask token."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first, self.norm = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 8, 3, stride=2)
        self.mask = nn.Parameter(torch.zeros(4))
        for parameter in self.parameters():
            parameter.data.normal_(std=0.3, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.norm(self.first(images)).relu()).relu().mean((2, 3))


def main(out: Path, pictures: Path) -> None:
    place = ProcessRank.read()
    machine = Machine(out.with_name(f"cache of {place.rank} of {place.size}"), CPU, workers=1)
    with join_processes(place, machine=machine, wait_s=60) as team:
        found = team.run_on_rank0(lambda: _extract(pictures, machine))
        torch.set_default_dtype(torch.float64)
        tensors = {f"{name}/{key}": tensor for name in CASES for key, tensor in _take_steps(name).items()}
        refused = [_refusal(lambda: team.require_same({"epochs": 3, "rank": team.rank})), _refuse_files(team, pictures)]
    if team.is_first:
        state = {"size": team.size, "skipped": found[1], "refused": refused}
        save_checkpoint(out, tensors | {"features": found[0]}, state=state)


def _extract(pictures: Path, machine: Machine) -> tuple[Tensor, list[str]]:
    """Features of all images that can be used, and the names of others; every process has a cache of its own."""
    preprocess = preprocess_for("squeezenet1_1", resize=40, crop=32, view="crop")
    extractor = Extractor(load_backbone("squeezenet1_1", "none"), preprocess, device=CPU, precision="float32")
    store, found = extract_together(sorted(pictures.rglob("*.jpg")), extractor=extractor, machine=machine)
    return torch.from_numpy(store.load(found.hashes)), [path.name for path, _ in found.skipped]


def _take_steps(case: str) -> dict[str, Tensor]:
    """The weights of model and loss after some steps, and the features by them."""
    config = resolve(
        backbone="resnet18",
        weights="none",
        resize=16,
        crop=SIDE,
        image_size=SIDE,
        finetune="all",
        epochs=10,
        embedding_dim=4,
        batch_size=5,
        holdout=False,
        **CASES[case],
    )
    rng, rows = np.random.default_rng(5), np.arange(IMAGES)
    pixels = rng.integers(0, 255, (IMAGES, 16, 16, 3), dtype=np.uint8)
    preprocess = preprocess_for("resnet18", resize=16, crop=SIDE, view="crop")
    backbone = Backbone("small", _Small().eval().requires_grad_(False), 8)
    extractor = Extractor(backbone, preprocess, device=CPU, precision="float32")
    head = ProjectionHead(torch.from_numpy(rng.normal(size=(4, 8))), torch.zeros(4))
    model = build_model(extractor, head, plan_blocks(backbone, config, side=SIDE), config=config)
    inputs = FinetuneInputs(extractor, pixels, side=SIDE)
    loss = build_loss(config.loss, class_count=CLASSES, embedding_dim=4, generator=phase_generator(0, FINETUNING, 0))
    confidences = torch.from_numpy(rng.random((IMAGES, CLASSES)))
    fit = FinetuneLoop(
        model,
        loss,
        FinetuneData(rows % CLASSES, CLASSES, Split(rows, rows[:0], rows[:0])),
        inputs=inputs,
        confidences=confidences,
        config=config,
        budget=Budget(config.finetuning, images=IMAGES, on_cpu=False),
        context=PhaseContext(seed=0, device=CPU, checkpoint=None),
    )
    fit.share()
    start = {name: tensor.clone() for name, tensor in model.moving().items()}
    penalty, generator = fit.l2_sp_penalty(start), phase_generator(0, FINETUNING, 1)
    batches = [torch.from_numpy(rows[first:end]) for first, end in BATCHES]
    drawn = inputs.draw_each(batches, generator=generator, part_of=fit.own_part)
    for step, (batch, views) in enumerate(drawn):
        fit.step(batch, views, step, penalty=penalty)
    stayed = [name for name, tensor in model.moving().items() if torch.equal(tensor, start[name])]
    assert stayed == ["backbone.mask"], stayed
    weights = {**model.state_dict(), **{f"loss.{name}": tensor for name, tensor in loss.state_dict().items()}}
    return {**weights, "features": read_together(inputs, rows)}


def _refusal(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except InputError as error:
        return str(error)
    return None


def _refuse_files(team: Team, pictures: Path) -> str:
    """Where rank 1 has no images."""
    records = [Record(path, "") for path in sorted(pictures.rglob("*.jpg"))]
    if not team.is_first:
        distributed._size = lambda _: None
    said = _refusal(lambda: team.run_on_rank0(lambda: distributed.require_same_files(records)))
    return str(said).replace(str(pictures), "PICTURES")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
