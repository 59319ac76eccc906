"""Steps of the network stage in float64, as one of the processes that torchrun has started, or alone.

python -m tests.training.run.exact_steps OUT: rank 0 writes what came of them to OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.labels.leave_one_out import sum_moments
from training.backbone.backbones import Backbone
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.losses.make_loss import build_loss
from training.network.random_views import draw_views
from training.options.backbone_libraries import preprocess_for
from training.options.resolve import resolve
from training.run.checkpoint import save_checkpoint
from training.run.distributed import Place, Team, join_processes
from training.run.moments import sum_moments_together
from training.run.network.beliefs import NetworkBeliefs
from training.run.network.blocks import build_model, plan_blocks
from training.run.network.data import NetworkData, read_together
from training.run.network.fit import NetworkFit
from training.run.network.inputs import NetworkInputs
from training.run.phases import NETWORK, PhaseContext, phase_generator
from training.run.trial_splits import Split

CLASSES, IMAGES, SIDE = (
    3,
    13,
    12,
)  # batches of 5, 4 and 4 would be even: those of `BATCHES` end with a single image
CASES: dict[str, dict[str, Any]] = {
    "proxy-anchor": {"method": "proxy-anchor"},
    "spa": {"method": "spa"},
    "in chunks": {"method": "proxy-nca", "network_chunk": 2},
    "pairs": {"method": "multi-similarity"},
}
BATCHES = ((0, 5), (5, 10), (10, 12), (12, 13), (0, 13))


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


def main(out: Path) -> None:
    torch.set_default_dtype(torch.float64)
    with join_processes(Place.read(), device=torch.device("cpu"), wait_s=60) as team:
        tensors = {f"{name}/{key}": tensor for name in CASES for key, tensor in _take_steps(name, team).items()}
        moments = team.first_does(_sum_moments)
        if team.is_first:
            save_checkpoint(out, tensors | {f"moments/{i}": torch.from_numpy(m) for i, m in enumerate(moments)},
                            state={"size": team.size})  # fmt: skip


def _take_steps(case: str, team: Team) -> dict[str, Tensor]:
    """The weights of model and loss after some steps, and the features by them."""
    config = resolve(
        backbone="resnet18", weights="none", resize=16, crop=SIDE, network_crop=SIDE, unfreeze="all",
        embedding_dim=4, network_batch_size=5, trial=False, **CASES[case],
    )  # fmt: skip
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 255, (IMAGES, 16, 16, 3), dtype=np.uint8)
    backbone = Backbone("small", _Small().eval().requires_grad_(False), 8)
    preprocess = preprocess_for("resnet18", resize=16, crop=SIDE, view="crop")
    extractor = Extractor(backbone, preprocess, device=torch.device("cpu"), precision="float32")
    head = ProjectionHead(torch.from_numpy(rng.normal(size=(4, 8))), torch.zeros(4))
    model = build_model(extractor, head, plan_blocks(extractor, config)[0], config=config)
    inputs = NetworkInputs(extractor, pixels, draw=lambda *given, **named: draw_views(*given, side=SIDE, **named))
    labels, rows = np.arange(IMAGES) % CLASSES, np.arange(IMAGES)
    data = NetworkData(pixels, labels, CLASSES, Split(rows, rows[:0], rows[:0]))
    loss = build_loss(
        config.network_loss, class_count=CLASSES, embedding_dim=4, generator=phase_generator(0, NETWORK, 0)
    )
    confidences = torch.from_numpy(rng.random((IMAGES, CLASSES)))
    beliefs = NetworkBeliefs(confidences[:, 0], confidences)
    context = PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=None)
    fit = NetworkFit(model, loss, data, inputs=inputs, beliefs=beliefs, config=config, context=context, team=team)
    fit.share()
    penalty = fit.hold_back({name: tensor.clone() for name, tensor in model.moving().items()})
    generator = phase_generator(0, NETWORK, 1)
    for step, (start, stop) in enumerate(BATCHES):
        drawn = torch.from_numpy(rows)[start:stop]
        fit.step(drawn, step, generator=generator, penalty=penalty)
    read = read_together(inputs, rows, team)
    return {**model.state_dict(), **{f"loss.{key}": p for key, p in loss.state_dict().items()}, "features": read}


def _sum_moments() -> Any:
    rng = np.random.default_rng(7)
    labels, parts = rng.integers(0, CLASSES, 41), rng.random(41)
    given = rng.normal(size=(41, 6)), parts / parts.mean(), labels
    whole = sum_moments(*given, count=CLASSES)
    together = sum_moments_together(*given, count=CLASSES, tell=lambda _: None)
    for one, other in zip(whole, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    return together


if __name__ == "__main__":
    main(Path(sys.argv[1]))
