"""The loop that makes a small network of two outputs: a teacher's neighbours for one, copies for the other."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from index.arrays import Floats, Ids
from index.errors import InputError, RunError
from index.images.preprocess import Pixels, PreprocessConfig
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.backbone.backbones import arrange_images, load_backbone
from training.backbone.freed_memory import keep_freed_memory
from training.data.copies import EDITS, MILD_EDITS, draw_copy
from training.distill.blocks import list_blocks, measure_blocks
from training.distill.losses import match_neighbours, regress_embeddings
from training.distill.network import TwoOutputs
from training.network.rates import rate_share
from training.network.weights import average_weights
from training.picture.losses import contrast_copies, spread_pictures
from training.picture.order import find_alike, order_alike
from training.run.checkpoint import (
    load_checkpoint,
    pack_modules,
    pack_optimizer,
    save_checkpoint,
    unpack_module,
    unpack_optimizer,
)

_AHEAD = 6  # batches, or two more than there are threads
_OWN_FROM = 0.4  # of the steps in which blocks learn: from here on they get what the student's own give
_VIEW = 7 / 9  # of the side that the student is made for


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """How the student learns.

    Attributes:
        backbone: torchvision's name of the trunk, from random weights.
        preprocess: of the student; its `crop` is what it sees of the whole image.
        kind_dim, picture_dim: widths of its outputs; the first is the teacher's.
        block_epochs: of `epochs`, the first: each block learns the teacher's; 0 where the two have other shapes.
        block_lr: in those.
        pictures: of a batch; each is in it twice, as a mild and as a strong copy.
        alike: pictures that come together in a batch, being alike to the teacher: what a copy is told from.
        bank: the teacher's embeddings that neighbours are looked for in, of every step others.
        neighbour_temperature, copy_temperature: of the two softmaxes.
        regress: weight of the distance to the teacher's embedding beside that of the neighbours.
        spread: weight of the entropy term beside the contrast of copies.
        average: how much of the averaged weights each step keeps.
    """

    backbone: str = "mobilenet_v2"
    preprocess: PreprocessConfig = field(default_factory=lambda: PreprocessConfig(resize=128, crop=128))
    kind_dim: int = 128
    picture_dim: int = 64
    block_epochs: int = 2
    block_lr: float = 4e-3
    epochs: int = 12
    pictures: int = 64
    alike: int = 4
    lr: float = 1e-3
    weight_decay: float = 0.05
    bank: int = 4096
    neighbour_temperature: float = 0.05
    copy_temperature: float = 0.05
    regress: float = 10.0
    spread: float = 1.0
    average: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.block_epochs < self.epochs:
            raise InputError(
                f"--block-epochs must be less than --epochs ({self.epochs}), and 0 at least, got {self.block_epochs}"
            )

    @property
    def view_side(self) -> int:
        """Pixels a side of the copies that teach.

        They are cut from the image, which enlarges what is on them: fewer pixels show it at the size that it has in the
        whole image (Touvron et al. 2019), and cost less.
        """
        return 16 * max(1, round(_VIEW * self.preprocess.crop / 16))


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the student learns from.

    Attributes:
        targets: (N, kind_dim) float32 unit rows of the teacher's, of all images.
        network: the teacher, in eval mode.
        weight, bias: (kind_dim, F) and (kind_dim,) float32: targets are unit rows of weight · f / |f| + bias.
    """

    targets: Floats
    network: nn.Module
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class DistillEpoch:
    """Mean losses of an epoch, and how long it took; `blocks` of one in which blocks learn, else the others."""

    epoch: int
    blocks: float
    kind: float
    regress: float
    copies: float
    spread: float
    seconds: float


class Distillation:
    """A student in training.

    Args:
        pixels: (N, R, R, 3) uint8, whole images stretched to squares.
        teacher: of all images.
        rows: (n,) int64, of those that teach.
        device: of the student; the teacher's network is there too.
        checkpoint: replaced after every epoch, and continued from where it exists.
        workers: threads that draw copies ahead.
        on_images: called with (batches done, batches) of an epoch.
    """

    def __init__(
        self, pixels: Pixels, teacher: Teacher, rows: Ids, *, config: DistillConfig, device: torch.device,
        checkpoint: Path, workers: int,
        on_epoch: Callable[[DistillEpoch], None] = lambda _: None,
        on_images: Progress = no_progress,
    ) -> None:  # fmt: skip
        self._pixels, self._targets, self._rows = pixels, torch.from_numpy(teacher.targets).to(device), rows
        self._device = device
        self._teacher = teacher
        self._config = config
        self._checkpoint, self._workers, self._on_epoch, self._on_images = checkpoint, workers, on_epoch, on_images
        trunk = load_backbone(config.backbone, "none", seed=config.seed)
        make = {"kind_dim": config.kind_dim, "picture_dim": config.picture_dim, "seed": config.seed}
        self.student = TwoOutputs(trunk, **make).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = TwoOutputs(load_backbone(config.backbone, "none", seed=config.seed), **make).to(device)
        self._optimizer = self._make_optimizer()
        if config.block_epochs:
            self._taught_blocks = list_blocks(teacher.network)
            self._own_blocks = list_blocks(trunk.network)
        self._weights = torch.tensor([1, config.regress, 1, config.spread], device=device)
        self._alike = find_alike(teacher.targets[rows])
        self._steps = max(1, len(rows) // config.pictures)
        self._mean = 255 * torch.tensor(config.preprocess.mean, device=device).view(1, 3, 1, 1)
        self._std = 255 * torch.tensor(config.preprocess.std, device=device).view(1, 3, 1, 1)

    @keep_freed_memory()
    def run(self) -> TwoOutputs:
        """Train to the last epoch; the averaged student, in eval mode, on the CPU.

        Raises:
            RunError: training diverged, or the checkpoint cannot be read or written.
        """
        for epoch in range(self._load() + 1, self._config.epochs + 1):
            if epoch == self._config.block_epochs + 1:
                self._begin_whole()
            self._run_epoch(epoch)
            self._save(epoch)
        return self.average.cpu().eval().requires_grad_(False)

    def _run_epoch(self, epoch: int) -> None:
        started, total = time.perf_counter(), torch.zeros(5, device=self._device)
        self.student.train()
        for number, (rows, views) in enumerate(self._draw_batches(epoch)):
            total += self._step(rows, views, (epoch - 1) * self._steps + number)
            self._on_images(number + 1, self._steps)
        blocks, kind, regress, copies, spread = (total / self._steps).tolist()
        if not math.isfinite(blocks + kind + regress + copies + spread):
            raise RunError(
                f"the distillation diverged in epoch {epoch}: lower the learning rate {self._config.lr}"
            )
        self._on_epoch(DistillEpoch(epoch, blocks, kind, regress, copies, spread, time.perf_counter() - started))

    def _draw_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(n,) rows and uint8 views, (n, S, S, 3) where blocks learn, else (2n, S, S, 3), the mild ones first.

        Seed, epoch and row decide.
        """
        generator = np.random.default_rng((self._config.seed, epoch))
        order = self._rows[order_alike(self._alike, generator, together=self._config.alike)]
        batches = [order[start : start + self._config.pictures] for start in
                   range(0, self._steps * self._config.pictures, self._config.pictures)]  # fmt: skip
        strengths = (False,) if epoch <= self._config.block_epochs else (False, True)

        def draw(rows: np.ndarray) -> tuple[Tensor, Tensor]:
            views = [self._draw_view(row, epoch, strong) for strong in strengths for row in rows.tolist()]
            return torch.from_numpy(rows), torch.from_numpy(np.stack(views))

        return map_ahead(draw, batches, workers=self._workers, ahead=max(_AHEAD, self._workers + 2))

    def _draw_view(self, row: int, epoch: int, strong: bool) -> Pixels:
        generator = np.random.default_rng((self._config.seed, epoch, row, strong))
        image = Image.fromarray(np.asarray(self._pixels[row]))
        copy = draw_copy(image, generator, edits=EDITS if strong else MILD_EDITS)
        side = self._config.view_side
        return np.asarray(copy.resize((side, side), Image.Resampling.BILINEAR))

    def _step(self, rows: Tensor, views: Tensor, step: int) -> Tensor:
        """(5,) losses of a step: of the blocks, or the four others."""
        config, images = self._config, arrange_images(views.to(self._device), self._mean, self._std)
        in_blocks = config.block_epochs * self._steps
        if step < in_blocks:
            self._set_rate(config.block_lr * rate_share(step, in_blocks))
            own = step >= _OWN_FROM * in_blocks
            differences = measure_blocks(self._taught_blocks, self._own_blocks, images, own_inputs=own)
            self._descend(differences.sum())
            return torch.stack([differences.detach().mean(), *torch.zeros(4, device=self._device)])
        self._set_rate(config.lr * rate_share(step - in_blocks, self._steps * config.epochs - in_blocks))
        losses = self._compare(images, rows, step)
        self._descend((losses * self._weights).sum())
        average_weights(
            self.average.state_dict(), self.student.state_dict(), keep=config.average, step=step - in_blocks
        )
        return torch.stack([torch.zeros((), device=self._device), *losses.detach()])

    def _compare(self, images: Tensor, rows: Tensor, step: int) -> Tensor:
        """(4,) losses of the whole student."""
        config, generator = self._config, torch.Generator().manual_seed(step)
        others = torch.from_numpy(self._rows)[torch.randint(len(self._rows), (config.bank,), generator=generator)]
        kinds, pictures = self.student(images)
        names = rows.to(self._device).repeat(2)
        targets, bank = self._targets[names], self._targets[others]
        return torch.stack([
            match_neighbours(kinds, targets, bank, temperature=config.neighbour_temperature),
            regress_embeddings(kinds, targets),
            contrast_copies(pictures, names, temperature=config.copy_temperature),
            spread_pictures(pictures, names),
        ])  # fmt: skip

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _descend(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def _begin_whole(self) -> None:
        """From the blocks to the whole student, whose kinds begin as the teacher's projection of its features."""
        self._optimizer = self._make_optimizer()
        if self._config.block_epochs:
            self.student.start_kind(self._teacher.weight, self._teacher.bias, lengths=self._measure_lengths())
        self.average.load_state_dict(self.student.state_dict())

    @torch.inference_mode()
    def _measure_lengths(self) -> float:
        """The mean length of the student's features, of some of the images."""
        self.student.eval()
        rows = self._rows[: self._config.pictures]
        views = torch.from_numpy(np.stack([self._draw_view(row, 0, False) for row in rows.tolist()]))
        images = arrange_images(views.to(self._device), self._mean, self._std)
        features = self.student.trunk(images).flatten(1)
        return float(features.norm(dim=1).mean())

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config = self._config
        return torch.optim.AdamW(
            self.student.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )

    def _load(self) -> int:
        """The epoch that the checkpoint is of; 0 without one."""
        if not self._checkpoint.exists():
            return 0
        tensors, state = load_checkpoint(self._checkpoint)
        if (begun := state.get("config")) != self._describe():
            raise RunError(
                f"{self._checkpoint}: begun with other options, {begun}; repeat those, or take another --out"
            )
        unpack_module(self.student, tensors, name="student")
        unpack_module(self.average, tensors, name="average")
        unpack_optimizer(self._optimizer, tensors)
        return int(state["epoch"])

    def _save(self, epoch: int) -> None:
        tensors = pack_modules(student=self.student, average=self.average) | pack_optimizer(self._optimizer)
        save_checkpoint(self._checkpoint, tensors, state={"epoch": epoch, "config": self._describe()})

    def _describe(self) -> dict[str, Any]:
        """What a checkpoint was begun with; more epochs may follow."""
        described: dict[str, Any] = json.loads(json.dumps(asdict(self._config)))
        del described["epochs"]
        return described
