"""Training loop of fine-tuning: blocks of the backbone, the head and the loss's parameters."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.progress import Progress, no_progress
from training.losses.interface import MetricLoss
from training.network.model import NetworkModel
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.distributed import current_team
from training.run.finetuning.data import FinetuneData, LossConfidences, read_together, reestimate_confidences
from training.run.finetuning.inputs import FinetuneInputs
from training.run.phases import (
    FINETUNING,
    EpochReport,
    PhaseContext,
    count_batches,
    draw_batches,
    phase_generator,
    require_finite,
)

Weights = dict[str, Tensor]
"""Those that training moves, by name as `NetworkModel.moving` has them."""
WARM_UP = 0.1  # of all steps
_TICKS = 1000  # that a time budget has in the place of steps
MOST_EVALUATIONS = 10  # or checkpoints, of a training with a number of epochs
MAX_NORM = 5.0  # of the gradient; that of Proxy-Anchor is some 1 to 10


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


@torch.no_grad()
def interpolate_weights(start: Weights, trained: Weights, alpha: float) -> dict[str, Tensor]:
    """(1 - alpha) start + alpha trained (WiSE-FT, Wortsman et al. 2022), exact at 0 and 1."""
    return {name: torch.lerp(tensor, trained[name], alpha) for name, tensor in start.items()}


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

    The embedding of an image must not depend on others in its batch, as with frozen batch norm.

    Args:
        measure: loss of all (B, D) embeddings; its own parameters get gradients too.
        chunk: images per forward pass; None for one pass.
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
    """Call `stop` at the first Ctrl-C (SIGINT) while the block runs; the next one interrupts as usual.

    Nothing changes outside of the main thread, which alone gets signals, and where a program handles SIGINT itself.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return

    def note(*_: object) -> None:
        signal.signal(signal.SIGINT, usual)
        stop()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


class OutOfTimeError(Exception):
    """Preparation that would use up the time budget, in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"preparation would take {seconds:.0f} s")
        self.seconds = seconds


_OBSERVED = 0.05  # share of a budget after which the speed of a step of preparation is known


def limit_preparation(
    on_images: Callable[[str, int, int], None], *, begun: float, budget_s: float
) -> Callable[[str, int, int], None]:
    """The same callback, which raises `OutOfTimeError` where a step would not end within the time budget.

    `begun` is the budget's start, by `time.perf_counter`.
    """
    first: dict[str, tuple[float, int]] = {}

    def note(step: str, done: int, total: int) -> None:
        on_images(step, done, total)
        now = ends = time.perf_counter()
        start, before = first.setdefault(step, (now, done))
        if done > before and now - start > _OBSERVED * budget_s:
            ends += (total - done) * (now - start) / (done - before)
        if ends - begun > budget_s:
            raise OutOfTimeError(ends - begun)

    return note


@dataclass(frozen=True, slots=True)
class EpochScore:
    """MAP@R on the held-out images, by part, with the averaged weights after an epoch; epoch 0 is the initial model.

    `found` is None without an evaluation, and empty where nothing could be held out.
    """

    epoch: int
    found: dict[str, float] | None
    loss: float | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class FittedWeights:
    """Weights from the loop: the initial, the last and the averaged ones, with the scores of all epochs."""

    start: Weights
    last: Weights
    average: Weights
    epochs: list[EpochScore] = field(default_factory=list)

    def pack(self) -> tuple[Weights, dict[str, Any]]:
        """Tensors and state for a checkpoint, without the initial weights."""
        sets = {"last": self.last, "average": self.average}
        tensors = {f"{name}/{key}": value for name, weights in sets.items() for key, value in weights.items()}
        return tensors, {"epochs": [asdict(score) for score in self.epochs]}

    def restore(self, tensors: Weights, state: dict[str, Any]) -> None:
        """From `pack`."""
        for name, weights in (("last", self.last), ("average", self.average)):
            for key, tensor in weights.items():
                tensor.copy_(tensors[f"{name}/{key}"])
        self.epochs = [EpochScore(**score) for score in state["epochs"]]


class FinetuneLoop:
    """Fine-tuning loop; each process that trains together has one with the same arguments.

    Args:
        model: at its initial weights; it ends with the last weights.
        context: its checkpoint is replaced after every epoch, on rank 0.
        on_images: called with (images seen, images of all epochs).
        on_start: called with (images done, images) of the initial model's evaluation.
        on_note: called with a line of text.
        begun: start of the time budget, by `time.perf_counter`.
        reserved_s: seconds of it for heads after the loop.

    Attributes:
        prepared_s: seconds before the first step, including those of an interrupted run.
        ended_by: `epochs`, `time` or `Ctrl-C`, once training is over.
        fitted: weights and scores so far.
    """

    def __init__(
        self,
        model: NetworkModel,
        loss: MetricLoss,
        data: FinetuneData,
        *,
        inputs: FinetuneInputs,
        confidences: LossConfidences,
        config: TrainConfig,
        context: PhaseContext,
        on_images: Progress = no_progress,
        on_start: Progress = no_progress,
        on_note: Callable[[str], None] = lambda _: None,
        begun: float | None = None,
        reserved_s: float = 0.0,
    ) -> None:
        self._team, self._reserved_s, self._on_start = current_team(), reserved_s, on_start
        self._on_note, self._is_stopped = on_note, False
        self.ended_by: str | None = None
        self._begun = time.perf_counter() if begun is None else begun
        self._first_step = self._deadline = self._begun  # by the same clock
        self._used = self._elapsed = 0.0  # shares of the time from the first step to the deadline: before, and now
        self.prepared_s = 0.0
        self._model, self._loss, self._data, self.inputs = model, loss, data, inputs
        self._confidences, self._config, self._context, self._on_images = confidences, config, context, on_images
        self._options = config.finetuning
        self._device = context.device
        self._rows = torch.from_numpy(data.split.train)
        self._labels = torch.from_numpy(data.labels)
        per_class = min(config.embedding.images_per_class, self._options.batch_size)
        self._together: dict[str, Any] = {"labels": self._labels[self._rows], "images_per_class": per_class}
        self._shared: nn.Module = model
        self.fitted = FittedWeights(copy_weights(model), copy_weights(model), copy_weights(model))
        self._steps = count_batches(size=self._batch_size(), **self._together)
        self._optimizer = make_optimizer(
            model, loss, self._options, proxy_lr=config.embedding.proxy_lr, weight_decay=config.embedding.weight_decay
        )

    def prepare(self) -> None:
        """Continue from the checkpoint, or evaluate the initial model; the first step comes next."""
        self._resume_or_begin(self.fitted)
        self.share()
        self._start_clock(self.fitted)

    def run(self) -> FittedWeights:
        """Train until epochs or time budget end, or Ctrl-C ends it.

        Where preparation has used up the time budget, only the initial model has a score. Processes that train together
        are interrupted as usual.
        """
        fitted, penalty = self.fitted, self.hold_back(self.fitted.start)
        with on_first_interrupt(self._stop) if self._team.size == 1 else nullcontext():
            while not self._is_done(fitted):
                self._run_epoch(len(fitted.epochs), fitted, penalty)
        load_weights(self._model, fitted.last)
        return fitted

    def _stop(self) -> None:
        self._is_stopped = True

    def _is_done(self, fitted: FittedWeights) -> bool:
        epochs = self._options.epochs
        if self._is_stopped and len(fitted.epochs) > 1:
            self.ended_by = "Ctrl-C"
        elif epochs is not None and len(fitted.epochs) > epochs:
            self.ended_by = "epochs"
        elif self._elapsed >= 1:
            self.ended_by = "time"
        return self.ended_by is not None

    def _note_time(self, done: int = 0) -> None:
        """Update the elapsed share of the time budget, by the clock of rank 0, or of the epochs if that is larger.

        `done` are the images seen so far.
        """
        if self._options.budget_s is not None:
            of_epochs = 0.0 if self._options.epochs is None else done / (self._options.epochs * len(self._rows))
            self._elapsed = max(of_epochs, self._team.run_on_rank0(self._measure_share))

    def _measure_share(self) -> float:
        """Elapsed share of the time budget."""
        now = time.perf_counter()
        if now >= self._deadline:
            return 1.0
        return self._used + (1 - self._used) * (now - self._first_step) / (self._deadline - self._first_step)

    def _foresee(self, done: int, planned: int) -> int:
        """Planned total, or its estimate under a time budget."""
        return planned if self._options.budget_s is None else max(done, round(done / self._elapsed))

    def share(self) -> None:
        """Let the processes sum their gradients; all begin with the weights of rank 0."""
        self._shared = self._team.share(self._model, has_unused=self._has_unused())

    def own_part(self, count: int) -> slice:
        """Images of a batch for this process; the first image, unread, where it has none."""
        part = self._team.part_of(count)
        return part if part.stop > part.start else slice(0, 1)

    def hold_back(self, start: Weights) -> Callable[[], None]:
        """L2-SP penalty towards these weights, called between backward and step."""
        network = [p for level in self._model.levels for p in level]
        by_name = {id(p): name for name, p in self._model.named_parameters()}
        begun = [start[by_name[id(p)]] for p in network]
        return partial(hold_near_start, network, begun, weight=self._options.backbone_l2_sp)

    def _run_epoch(self, epoch: int, fitted: FittedWeights, penalty: Callable[[], None]) -> None:
        started = time.perf_counter()
        generator = phase_generator(self._context.seed, FINETUNING, epoch)
        seen, total = 0, torch.zeros((), device=self._device)
        batches = draw_batches(self._rows, self._batch_size(), generator, **self._together)
        with closing(self.inputs.draw_each(batches, generator=generator, part_of=self.own_part)) as drawn:
            for number, (rows, views) in enumerate(drawn):
                step = (epoch - 1) * self._steps + number
                loss = self.step(rows, views, step, penalty=penalty)
                average_weights(fitted.average, self._model.moving(), keep=self._options.ema, step=step)
                total += loss * len(rows)
                seen += len(rows)
                done = (epoch - 1) * len(self._rows) + seen
                self._note_time(done)
                self._on_images(done, self._foresee(done, (self._options.epochs or 0) * len(self._rows)))
                if self._elapsed >= 1 or self._is_stopped:
                    break
        if self._is_stopped:
            self._on_note("Ctrl-C: fine-tuning ends early, and what it found so far counts; again ends at once")
        epochs = self._foresee(epoch, self._options.epochs or 0)
        mean_loss = require_finite(total.item() / seen, phase=FINETUNING, epoch=epoch)  # waits for a GPU
        trained = time.perf_counter() - started
        is_last = self._elapsed >= 1 or self._is_stopped or epoch == self._options.epochs
        with using_weights(self._model, fitted.average):
            found = self._evaluate(epoch, is_last=is_last)
        fitted.last = copy_weights(self._model)
        fitted.epochs.append(EpochScore(epoch, found, mean_loss, time.perf_counter() - started))
        seconds, speed = time.perf_counter() - started, seen / trained
        self._context.on_epoch(EpochReport(FINETUNING, epoch, epochs, mean_loss, seconds, speed, **(found or {})))
        # A resume of a run that is killed now continues after the last whole epoch.
        if not self._is_stopped and (is_last or epoch % self._at_least(1) == 0):
            self._save(epoch, fitted)

    def step(self, rows: Tensor, views: Tensor, step: int, *, penalty: Callable[[], None]) -> Tensor:
        """One step on the images `rows` (B,), of which `views` (n, …) are this process's own; returns the loss."""
        part = self._team.part_of(len(rows))
        labels = self._labels[rows].to(self._device)
        if self._options.budget_s is not None:
            set_rates(self._optimizer, step=min(int(_TICKS * self._elapsed), _TICKS), steps=_TICKS)
        else:
            set_rates(self._optimizer, step=step, steps=self._steps * (self._options.epochs or 0))
        batch = self._confidences.batch(rows, labels)
        self._optimizer.zero_grad()
        loss = backward_in_chunks(
            self._shared,
            views.to(self._device, non_blocking=True),
            lambda own: self._loss(self._team.with_others(own[: part.stop - part.start], len(rows)), batch),
            chunk=self._options.micro_batch_size,
        )
        self._team.agree(self._loss.parameters())
        penalty()
        nn.utils.clip_grad_norm_([p for p in self._model.parameters() if p.requires_grad], MAX_NORM)
        self._optimizer.step()
        return loss

    def _batch_size(self) -> int:
        """Size of batches that are as even as possible, as a small last one would take a whole step."""
        size, count = self._options.batch_size, len(self._rows)
        if self._together["images_per_class"]:
            return size
        return -(-count // -(-count // size))

    def _evaluate(
        self, epoch: int, *, is_last: bool = False, progress: Progress = no_progress
    ) -> dict[str, float] | None:
        """Evaluate on the held-out images, and estimate confidences again, in one pass over the images."""
        if epoch % self._at_least(self._options.eval_every) and not is_last:
            return None
        searched, train = self._data.searched_rows(), self._data.split.train
        estimates = self._config.reestimates_confidences and epoch > 0 and not is_last
        rows = np.union1d(searched, train) if estimates else searched
        features = read_together(self.inputs, rows, progress=progress)
        if estimates:
            self._confidences = self._team.run_on_rank0(
                lambda: reestimate_confidences(features[np.searchsorted(rows, train)], self._data, self._config.loss)
            )
        return self._team.run_on_rank0(lambda: self._data.score_features(self._model.head, features.numpy(), rows))

    def _at_least(self, epochs: int) -> int:
        """Epochs between two evaluations or checkpoints: so many, or more where few images take many epochs."""
        return max(epochs, (self._options.epochs or 0) // MOST_EVALUATIONS)

    def _resume_or_begin(self, fitted: FittedWeights) -> None:
        found = self._team.run_on_rank0(self._context.load)
        if found is None:
            started = time.perf_counter()
            score = self._evaluate(0, progress=self._on_start)
            fitted.epochs.append(EpochScore(0, score, seconds=time.perf_counter() - started))
            return
        tensors, state = found
        fitted.restore(tensors, state)
        load_weights(self._model, fitted.last)
        unpack_module(self._loss, tensors, name="loss")
        unpack_optimizer(self._optimizer, tensors)
        self._confidences = LossConfidences.unpack(tensors)
        self._begun -= state["used_s"]
        self._used = state["share"]

    def _start_clock(self, fitted: FittedWeights) -> None:
        """Reserve time of the budget for the last evaluation, the features of all images, and heads on them.

        Learning rates follow the share of time since the first step: a slow preparation does not cut the warm-up.
        """
        self._first_step = time.perf_counter()
        self.prepared_s = self._first_step - self._begun
        if (budget := self._options.budget_s) is not None:
            evaluations = 1 + len(self._data.labels) / max(1, len(self._data.searched_rows()))
            after = evaluations * fitted.epochs[0].seconds + self._reserved_s
            self._deadline = self._begun + budget - after
            self._note_time((len(fitted.epochs) - 1) * len(self._rows))
            if (left := self._deadline - self._first_step) < self.prepared_s and len(fitted.epochs) == 1:
                ends = f"{left:.0f} s are left to train" if left > 0 else "nothing is fine-tuned"
                minutes = math.ceil((2 * self.prepared_s + after) / 60)
                self._on_note(
                    f"fine-tuning: preparation took {self.prepared_s:.0f} s of --time-budget "
                    f"{self._options.time_budget}, and comparing the result will take {after:.0f} s, so {ends}: train "
                    f"anew with --time-budget {minutes}m or more"
                )

    def _has_unused(self) -> bool:
        """Whether a pass leaves out parameters that train, such as a mask token."""
        if self._team.size == 1:
            return False
        views = self.inputs.draw(self._rows[:1], generator=torch.Generator())
        self._model(views.to(self._device)).sum().backward()
        unused = any(p.requires_grad and p.grad is None for p in self._model.parameters())
        self._model.zero_grad(set_to_none=True)
        return unused

    def _save(self, epoch: int, fitted: FittedWeights) -> None:
        tensors, state = fitted.pack()
        tensors |= pack_modules(loss=self._loss) | pack_optimizer(self._optimizer) | self._confidences.pack()
        share = 0.0 if self._options.budget_s is None else self._measure_share()
        used = {"used_s": time.perf_counter() - self._begun, "share": share}
        self._context.save(tensors, state={"epoch": epoch, **used, **state})
