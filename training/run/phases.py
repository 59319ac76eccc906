"""Training phases: the job, random seeds, batches and epoch reports."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from index.errors import RunError
from index.progress import StepProgress, no_progress
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.checkpoint import load_checkpoint, save_checkpoint
from training.run.run_folder import RunFolder

PHASES = ("confidence", "embedding")
FINETUNING = "finetuning"
_SEEDS = {"confidence": 0, "embedding": 1, FINETUNING: 1 << 40}  # the last far beyond those of other seeds


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch of one phase, for the display and the metrics file.

    `positives_per_sample` and `share_without_positive` show whether lambda suits the data. `unseen` and `seen` are
    MAP@R in fine-tuning.
    """

    phase: str
    epoch: int
    epochs: int
    loss: float
    seconds: float
    images_per_second: float
    held_out_loss: float | None = None
    positives_per_sample: float | None = None
    share_without_positive: float | None = None
    unseen: float | None = None
    seen: float | None = None

    def to_json(self) -> dict[str, object]:
        """The epoch as one line of the metrics file."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class PhaseContext:
    """Seed, device, checkpoint and callbacks of a phase.

    The checkpoint is replaced after every epoch, and continued from if it exists; None keeps nothing. `on_epoch` is
    called before it is written.
    """

    seed: int
    device: torch.device
    checkpoint: Path | None
    on_epoch: Callable[[EpochReport], None] = lambda _: None

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and state of the last epoch; None at the start of the phase."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return None
        return load_checkpoint(self.checkpoint)

    def save(self, tensors: Mapping[str, Tensor], *, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        if self.checkpoint is not None:
            save_checkpoint(self.checkpoint, tensors, state=state)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks of a run; each may be left out.

    `on_phase(name)` when a phase begins, `on_images(description, done, total)`, `on_epoch(report)`,
    `on_holdout(result as in the report)`, `on_note(text)`.
    """

    on_phase: Callable[[str], None] = lambda _: None
    on_images: StepProgress = no_progress
    on_epoch: Callable[[EpochReport], None] = lambda _: None
    on_holdout: Callable[[Mapping[str, Any]], None] = lambda _: None
    on_note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Training run in progress: folder, options, machine and watcher."""

    run: RunFolder
    config: TrainConfig
    machine: Machine
    watcher: Watcher
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, step: str) -> Iterator[None]:
        """Time a phase, and announce it."""
        self.watcher.on_phase(step)
        started = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - started

    def context(self, phase: str) -> PhaseContext:
        """Context of a phase that writes its epochs to the metrics file."""

        def note(report: EpochReport) -> None:
            self.run.append_metrics(report.to_json())
            self.watcher.on_epoch(report)

        return PhaseContext(self.config.seed, self.machine.device, self.run.checkpoint(phase), note)


def phase_generator(seed: int, phase: str, epoch: int) -> torch.Generator:
    """Generator of one epoch's draws; epoch 0 is for initial weights.

    The draws depend on (seed, phase, epoch) alone, so that a resumed run continues with the same batches.
    """
    generator = torch.Generator()
    generator.manual_seed((seed * len(PHASES) + _SEEDS[phase]) * 1_000_003 + epoch)
    return generator


def draw_batches(
    rows: Tensor, size: int, generator: torch.Generator, *, labels: Tensor | None = None, images_per_class: int = 0
) -> Iterator[Tensor]:
    """(N,) row numbers in random order, each once, at most `size` at a time; the last batch may be smaller.

    With `images_per_class` K and their (N,) `labels`, each class is first split at random into even groups of at most
    K, and a batch is `size // K` groups in random order.
    """
    order = torch.randperm(len(rows), generator=generator)
    if not images_per_class or labels is None:
        return iter(rows[order].split(size))
    groups = _group_classes(labels[order], images_per_class)
    positions = torch.randperm(int(groups.max()) + 1, generator=generator)[groups]  # (N,) of each one's group
    batches = positions // (size // images_per_class)
    sizes = torch.bincount(batches).tolist()
    return iter(rows[order][positions.argsort(stable=True)].split(sizes))


def count_batches(labels: Tensor, size: int, *, images_per_class: int = 0) -> int:
    """Number of batches from `draw_batches`."""
    if not images_per_class:
        return -(-len(labels) // size)
    return -(-(int(_group_classes(labels, images_per_class).max()) + 1) // (size // images_per_class))


def _group_classes(labels: Tensor, most: int) -> Tensor:
    """(N,) int64 group of every image, 0..G-1: each class in as few groups as `most` allows, of even sizes."""
    _, classes, sizes = labels.unique(return_inverse=True, return_counts=True)
    by_class = classes.argsort(stable=True)
    rank = torch.empty_like(classes)  # rank of each image within its class
    rank[by_class] = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes[by_class]]
    counts = (sizes + most - 1) // most
    return (counts.cumsum(0) - counts)[classes] + rank * counts[classes] // sizes[classes]


def require_finite(loss: float, *, phase: str, epoch: int) -> float:
    """The loss, if it is finite."""
    if not math.isfinite(loss):
        raise RunError(f"training diverged: the {phase} loss of epoch {epoch} is {loss}; lower the learning rate")
    return loss
