"""Training loop of fine-tuning: blocks of the backbone, the head and the loss's parameters."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.arrays import Floats, Ids
from index.progress import Progress, no_progress
from training.confidence.confidences import Confidences, take_rows
from training.losses.interface import Batch, MetricLoss
from training.network.model import NetworkModel
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.distributed import current_team
from training.run.finetuning.budget import Budget
from training.run.finetuning.data import (
    ALPHAS,
    FinetuneData,
    pack_confidences,
    read_together,
    reestimate_confidences,
    unpack_confidences,
)
from training.run.finetuning.inputs import FinetuneInputs
from training.run.phases import (
    FINETUNING,
    EpochReport,
    PhaseContext,
    Watcher,
    count_batches,
    draw_batches,
    phase_generator,
    require_finite,
)
from training.run.searches import embed_features

Weights = dict[str, Tensor]
"""Weights that training changes, by name, as `NetworkModel.moving` has them."""
WARM_UP = 0.1  # share of all steps
_TICKS = 1000  # steps that a time budget counts as
MAX_NORM = 5.0  # greatest norm of the gradient; Proxy-Anchor has norms of some 1 to 10


def copy_weights(model: NetworkModel) -> dict[str, Tensor]:
    """Current weights of the model."""
    return {name: tensor.clone() for name, tensor in model.moving().items()}


@torch.no_grad()
def load_weights(model: NetworkModel, weights: Weights) -> None:
    """Set the weights of the model."""
    for name, tensor in model.moving().items():
        tensor.copy_(weights[name])


@contextmanager
def using_weights(model: NetworkModel, weights: Weights) -> Iterator[None]:
    """Set the weights of the model while the block runs."""
    own = copy_weights(model)
    load_weights(model, weights)
    try:
        yield
    finally:
        load_weights(model, own)


@torch.no_grad()
def average_weights(average: Weights, weights: Weights, *, keep: float, step: int) -> None:
    """Exponential moving average: average = k average + (1 - k) weights.

    k is `keep`, or (t + 1) / (t + 10) in the first steps, so that the initial weights do not dominate.
    """
    kept = min(keep, (step + 1) / (step + 10))
    for name, tensor in weights.items():
        average[name].lerp_(tensor, 1 - kept)


def make_optimizer(
    model: NetworkModel, loss: MetricLoss, config: FinetuneConfig, *, proxy_lr: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with a group for each block, for the head, and for the loss; `peak` is the highest rate of each.

    The last block learns at `lr`, each before it at `layer_decay` times the next one's. The backbone has an L2-SP
    penalty instead of weight decay.
    """
    levels = reversed(model.levels)
    groups: list[dict[str, Any]] = [
        {"params": parameters, "lr": config.lr * config.layer_decay**depth, "weight_decay": 0.0}
        for depth, parameters in enumerate(levels)
    ]
    head = list(model.head.parameters())
    groups.append({"params": head, "lr": config.finetune_head_lr, "weight_decay": weight_decay})
    groups += loss.parameter_groups(proxy_lr=proxy_lr, weight_decay=weight_decay)
    for group in groups:
        group["peak"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, *, step: int, steps: int) -> None:
    """Learning rates of a step, from 0: linear warm-up over the first tenth, then a cosine to 0."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * rate_share(step, steps)


def rate_share(step: int, steps: int) -> float:
    """Learning rate of a step as a share of its peak."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up + 1) / (steps - warm_up + 1)))


@torch.no_grad()
def hold_near_start(parameters: Sequence[nn.Parameter], start: Sequence[Tensor], *, weight: float) -> None:
    """Add the gradient of the L2-SP penalty, 2 weight (p - start), to the gradients."""
    if weight == 0:
        return
    for parameter, begun in zip(parameters, start, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter - begun, alpha=2 * weight)


# Gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021): the
# loss sees the whole batch, the network a chunk at a time. It costs one more forward pass.
def backward_in_chunks(
    model: nn.Module, images: Tensor, measure: Callable[[Tensor], Tensor], *, chunk: int | None
) -> Tensor:
    """Backpropagate `measure(model(images))` in chunks, with the gradients of the whole batch; returns the loss.

    The embedding of an image must not depend on others in its batch, as with frozen batch norm. `measure` is the loss
    of all (B, D) embeddings; its own parameters get gradients too.
    """
    if chunk is None or chunk >= len(images):
        loss = measure(model(images))
        loss.backward()
        return loss.detach()
    parts = images.split(chunk)
    skip_sharing = getattr(model, "no_sync", nullcontext)  # processes sum their gradients once a step
    with torch.no_grad():
        embeddings = torch.cat([model(part) for part in parts])
    embeddings.requires_grad_(True)
    loss = measure(embeddings)
    loss.backward()
    assert embeddings.grad is not None
    for number, (part, gradient) in enumerate(zip(parts, embeddings.grad.split(chunk), strict=True), 1):
        with nullcontext() if number == len(parts) else skip_sharing():
            model(part).backward(gradient)
    return loss.detach()


@contextmanager
def on_first_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C (SIGINT) while the block runs; the next one interrupts at once.

    Nothing changes outside of the main thread, which alone gets signals, and where a program handles SIGINT itself.
    """
    handler = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not handler:
        yield
        return

    def note(*_: object) -> None:
        signal.signal(signal.SIGINT, handler)
        stop()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@dataclass(frozen=True, slots=True)
class EpochScore:
    """MAP@R on the held-out images, by part, with the averaged weights after an epoch; epoch 0 is the initial model.

    `map_at_r` is None without an evaluation, and empty where nothing could be held out.
    """

    epoch: int
    map_at_r: dict[str, float] | None
    loss: float | None = None
    seconds: float = 0.0


class FinetuneLoop:
    """Fine-tuning loop; each process that trains together has one with the same arguments.

    The model begins at the weights `start` and ends with `last`; `average` are the averaged ones, `epochs` the scores.
    `ended_by` is `epochs`, `time` or `Ctrl-C`, once training is over.
    """

    def __init__(
        self,
        model: NetworkModel,
        loss: MetricLoss,
        data: FinetuneData,
        *,
        inputs: FinetuneInputs,
        confidences: Confidences | None,
        config: TrainConfig,
        budget: Budget,
        context: PhaseContext,
        watcher: Watcher | None = None,
    ) -> None:
        self.model, self.inputs, self.budget = model, inputs, budget
        self.ended_by: str | None = None
        self.start, self.last, self.average = (copy_weights(model) for _ in range(3))
        self.epochs: list[EpochScore] = []
        self._loss, self._data, self._confidences, self._initial = loss, data, confidences, confidences
        self._config, self._options, self._context = config, config.finetuning, context
        self._watcher, self._team = watcher or Watcher(), current_team()
        self._device, self._is_stopped = context.device, False
        self._rows, self._labels = torch.from_numpy(data.split.train), torch.from_numpy(data.labels)
        per_class = min(config.head.images_per_class, self._options.batch_size)
        self._together: dict[str, Any] = {"labels": self._labels[self._rows], "images_per_class": per_class}
        self._batch_size = self._options.batch_size
        if not per_class:  # batches as even as possible, as a small last one would take a whole step
            self._batch_size = -(-len(self._rows) // -(-len(self._rows) // self._batch_size))
        self._steps = count_batches(size=self._batch_size, **self._together)
        self._optimizer = make_optimizer(
            model, loss, self._options, proxy_lr=config.head.proxy_lr, weight_decay=config.head.weight_decay
        )
        self._shared: nn.Module = model

    def prepare(self, progress: Progress = no_progress) -> None:
        """Continue from the checkpoint, or evaluate the initial model; the first step comes next."""
        if (found := self._team.run_on_rank0(self._context.load)) is None:
            started = time.perf_counter()
            score = self._evaluate(0, progress=progress)
            self.epochs.append(EpochScore(0, score, seconds=time.perf_counter() - started))
        else:
            tensors, state = found
            for name, weights in (("last", self.last), ("average", self.average)):
                for key, tensor in weights.items():
                    tensor.copy_(tensors[f"{name}/{key}"])
            self.epochs = [EpochScore(**score) for score in state["epochs"]]
            load_weights(self.model, self.last)
            unpack_module(self._loss, tensors, name="loss")
            unpack_optimizer(self._optimizer, tensors)
            self._confidences = unpack_confidences(tensors)
            self.budget.resume(state)
        self.share()
        # After training come the last evaluation, those that choose weights, and features of all images.
        passes = 1 + len(self._data.labels) / max(1, len(self._data.searched_rows()))
        passes += len(ALPHAS) if self.chooses_alpha else 0
        note = self.budget.start_clock(epoch=len(self.epochs) - 1, evaluation_s=passes * self.epochs[0].seconds)
        if note is not None:
            self._watcher.on_note(note)

    def share(self) -> None:
        """Let the processes sum their gradients; all begin with the weights of rank 0."""
        if self._team.size == 1:
            return
        views = self.inputs.draw(self._rows[:1], generator=torch.Generator())
        self.model(views.to(self._device)).sum().backward()
        has_unused = any(p.requires_grad and p.grad is None for p in self.model.parameters())  # such as a mask token
        self.model.zero_grad(set_to_none=True)
        self._shared = self._team.share(self.model, has_unused=has_unused)

    def run(self) -> None:
        """Train until epochs or time budget end, or Ctrl-C ends it.

        Where preparation has used up the time budget, only the initial model has a score. Processes that train together
        are interrupted at once.
        """
        penalty = self.l2_sp_penalty(self.start)
        with on_first_interrupt(self._stop) if self._team.size == 1 else nullcontext():
            while (ended_by := self.budget.ended_by(len(self.epochs) - 1)) is None:
                self._run_epoch(len(self.epochs), penalty)
                if self._is_stopped:
                    ended_by = "Ctrl-C"
                    break
        self.ended_by = ended_by
        load_weights(self.model, self.last)

    def _stop(self) -> None:
        self._is_stopped = True

    @property
    def chooses_alpha(self) -> bool:
        """Whether held-out images choose the exported weights: by posteriors, with a gallery of training images."""
        data, scores = self._data, self.epochs[0].map_at_r
        return self._options.wise_ft_alpha is None and data.posteriors is not None and "seen" in (scores or {})

    def own_part(self, count: int) -> slice:
        """Images of a batch for this process; the first image, unread, where it has no part."""
        part = self._team.part_of(count)
        return part if part.stop > part.start else slice(0, 1)

    def l2_sp_penalty(self, start: Weights) -> Callable[[], None]:
        """L2-SP penalty towards these weights, called between backward and step."""
        network = [p for level in self.model.levels for p in level]
        by_name = {id(p): name for name, p in self.model.named_parameters()}
        begun = [start[by_name[id(p)]] for p in network]
        return partial(hold_near_start, network, begun, weight=self._options.backbone_l2_sp)

    def _run_epoch(self, epoch: int, penalty: Callable[[], None]) -> None:
        """Train, evaluate the averaged weights, report and save one epoch."""
        started, budget = time.perf_counter(), self.budget
        total, seen = self._run_steps(epoch, penalty)
        if self._is_stopped:
            self._watcher.on_note("Ctrl-C: fine-tuning ends early, and what it found so far counts; again ends at once")
        mean_loss = require_finite(total.item() / seen, phase=FINETUNING, epoch=epoch)  # waits for a GPU
        speed = seen / (time.perf_counter() - started)
        epochs = budget.foresee(epoch, budget.epochs or 0)
        is_last = self._is_stopped or budget.ended_by(epoch) is not None
        with using_weights(self.model, self.average):
            found = self._evaluate(epoch, is_last=is_last)
        self.last = copy_weights(self.model)
        self.epochs.append(EpochScore(epoch, found, mean_loss, time.perf_counter() - started))
        seconds = time.perf_counter() - started
        self._context.on_epoch(EpochReport(FINETUNING, epoch, epochs, mean_loss, seconds, speed, **(found or {})))
        # A resume of a run that is killed now continues after the last whole epoch.
        if not self._is_stopped and (is_last or epoch % budget.at_least(1) == 0):
            sets = {"last": self.last, "average": self.average}
            tensors = {f"{name}/{key}": value for name, weights in sets.items() for key, value in weights.items()}
            state = {"epoch": epoch, **budget.pack(), "epochs": [asdict(score) for score in self.epochs]}
            tensors |= (
                pack_modules(loss=self._loss) | pack_optimizer(self._optimizer) | pack_confidences(self._confidences)
            )
            self._context.save(tensors, state=state)

    def _run_steps(self, epoch: int, penalty: Callable[[], None]) -> tuple[Tensor, int]:
        """Steps of an epoch until the time ends; returns the sum of the losses of the images, and their number."""
        generator, count = phase_generator(self._context.seed, FINETUNING, epoch), len(self._rows)
        seen, total = 0, torch.zeros((), device=self._device)
        batches = draw_batches(self._rows, self._batch_size, generator, **self._together)
        with closing(self.inputs.draw_each(batches, generator=generator, part_of=self.own_part)) as drawn:
            for number, (rows, views) in enumerate(drawn):
                step = (epoch - 1) * self._steps + number
                total += self.step(rows, views, step, penalty=penalty) * len(rows)
                average_weights(self.average, self.model.moving(), keep=self._options.ema, step=step)
                seen += len(rows)
                done = (epoch - 1) * count + seen
                self.budget.update(done)
                planned = self.budget.foresee(done, (self.budget.epochs or 0) * count)
                self._watcher.on_images("finetuning images", done, planned)
                if self.budget.elapsed >= 1 or self._is_stopped:
                    break
        return total, seen

    def step(self, rows: Tensor, views: Tensor, step: int, *, penalty: Callable[[], None]) -> Tensor:
        """One step on the images `rows` (B,), of which `views` (n, …) are this process's own; returns the loss."""
        part = self._team.part_of(len(rows))
        labels = self._labels[rows].to(self._device)
        if self.budget.limit_s is not None:
            set_rates(self._optimizer, step=min(int(_TICKS * self.budget.elapsed), _TICKS), steps=_TICKS)
        else:
            set_rates(self._optimizer, step=step, steps=self._steps * (self.budget.epochs or 0))
        known = None if self._confidences is None else take_rows(self._confidences, rows).to(self._device)
        batch = Batch(labels, known)
        self._optimizer.zero_grad()
        loss = backward_in_chunks(
            self._shared,
            views.to(self._device, non_blocking=True),
            lambda own: self._loss(self._team.gather_rows(own[: part.stop - part.start], len(rows)), batch),
            chunk=self._options.micro_batch_size,
        )
        self._team.broadcast_gradients(self._loss.parameters())
        penalty()
        nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], MAX_NORM)
        self._optimizer.step()
        return loss

    def _evaluate(
        self, epoch: int, *, is_last: bool = False, progress: Progress = no_progress
    ) -> dict[str, float] | None:
        """Evaluate on the held-out images, and estimate confidences again, in one pass over the images."""
        if epoch % self.budget.at_least(self._options.eval_every) and not is_last:
            return None
        searched, train = self._data.searched_rows(), self._data.split.train
        estimates = self._config.reestimates_confidences and epoch > 0 and not is_last
        rows = np.union1d(searched, train) if estimates else searched
        if not len(rows):
            return {}
        features = read_together(self.inputs, rows, progress=progress)
        if estimates:
            self._confidences = self._team.run_on_rank0(
                lambda: reestimate_confidences(
                    features[np.searchsorted(rows, train)], self._data, self._config.loss, initial=self._initial
                )
            )

        def embed(wanted: Ids) -> Floats:
            return embed_features(self.model.head, features[np.searchsorted(rows, wanted)].numpy())

        return self._team.run_on_rank0(lambda: self._data.score(embed))
