"""Training loop of the embedding head and its proxies on the features of a frozen backbone (phase 2)."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from index.errors import RunError
from training.confidence.confidences import Confidences, LabelConfidences, take_rows
from training.head.embedding_heads import EmbeddingHead, Head, WhitenedHead
from training.head.untrained import fit_rival, fit_within_classes
from training.losses.interface import Batch, MetricLoss, ProxyLoss, build_loss
from training.options.config import USUAL_L2_SP, HeadConfig, TrainConfig
from training.options.losses import RIVALS, WCCN
from training.run.checkpoint import pack_modules, pack_optimizer, unpack_module, unpack_optimizer
from training.run.label_confidences import choose_rows, known_weights
from training.run.phases import (
    EpochReport,
    PhaseContext,
    TrainingJob,
    count_batches,
    draw_batches,
    phase_generator,
    require_finite,
)
from training.run.prepare import PreparedData
from training.run.verdict import TRAINED, Verdict

TrainedHead = EmbeddingHead | WhitenedHead
CHECKPOINTS = 10  # checkpoints of phase 2, where it is counted in steps


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """Embedding dimension D and weight of the L2-SP penalty: the head's options that depend on the data."""

    width: int
    l2_sp: float


@dataclass(frozen=True, slots=True)
class FrozenEmbedding:
    """Embedding on the frozen backbone: method, head, number of its training images, and the plan of trained heads."""

    method: str
    head: Head
    trained_on: int
    plan: HeadPlan


def fit_frozen(
    job: TrainingJob,
    prepared: PreparedData,
    confidences: LabelConfidences | None,
    *,
    holdout: Mapping[str, Any] | None,
    verdict: Verdict | None,
) -> FrozenEmbedding:
    """Head on the frozen backbone: trained, or that of a rival where the verdict of the holdout evaluation exports it.

    `holdout` is this evaluation, as in the report, which has selected an L2-SP weight.
    """
    training, config, method = prepared.training, job.config, job.config.loss.method
    if verdict is not None and verdict.exported != TRAINED and not prepared.chooses_by_val(config):
        method = verdict.exported
    rows, width = choose_rows(confidences, config=config), config.head.width
    count = len(training.images) if rows is None else len(rows)
    if config.head.embedding_dim is None:
        width = max(1, min(width, training.on_device.shape[1], count - 1))
    l2_sp = config.head.l2_sp if holdout is None else holdout["l2_sp"]
    plan = HeadPlan(width, USUAL_L2_SP if l2_sp is None else l2_sp)
    if method in RIVALS:
        with job.measure("projection"):
            labelled = training.labelled(known_weights(confidences, config=config), reads_labels=method == WCCN)
            return FrozenEmbedding(method, fit_rival(method, labelled, embedding_dim=width), len(training.images), plan)
    with job.measure("embedding"):
        head_training = HeadTraining(
            training.on_device,
            training.labels,
            len(training.classes),
            config,
            plan,
            job.context("embedding"),
            confidences,
            rows,
        )
        head = head_training.train()
    return FrozenEmbedding(method, head, count, plan)


@dataclass(frozen=True, slots=True)
class HeadTraining:
    """Training of the embedding head and the loss's own parameters, with fixed confidences.

    A head initialised by WCCN has an L2-SP penalty, and the proxies start at the class means of that initialisation.

    Attributes:
        features: (N, F) of the training images.
        labels: (N,) int64 given labels; Smooth Proxy-Anchor does not read them.
        confidences: of phase 1, for a loss that reads them and --init wccn.
        rows: sorted numbers of the images that train; None for all.
    """

    features: Tensor
    labels: Tensor
    class_count: int
    config: TrainConfig
    plan: HeadPlan
    context: PhaseContext
    confidences: LabelConfidences | None = None
    rows: Tensor | None = None

    @property
    def _rows(self) -> Tensor:
        return torch.arange(len(self.labels)) if self.rows is None else self.rows.cpu()

    @property
    def _by_class(self) -> Confidences | None:
        """Confidences that the loss reads."""
        return (
            self.confidences.by_class if self.confidences is not None and self.config.loss.needs_confidences else None
        )

    def train(self) -> Head:
        """Head with the last weights."""
        if self.config.needs_confidences and self.confidences is None:
            raise ValueError(f"{self.config.loss.method} needs the label confidences of phase 1")
        options, rows = self.config.head, self._rows
        if not len(rows):
            raise RunError(
                "no training image is left for phase 2: no label reaches --min-confidence; lower it, in a new --out"
            )
        head, loss, optimizer, first_epoch = self.start()
        together: dict[str, Any] = {"labels": self.labels.cpu()[rows], "images_per_class": options.images_per_class}
        epochs, last_steps = count_epochs(options, count_batches(size=options.head_batch_size, **together))
        # Steps on few images are many epochs of one step each: a file for each would outlast the training.
        checkpoint_every = 1 if options.head_steps is None else max(1, epochs // CHECKPOINTS)
        inputs = self.features
        if isinstance(head, WhitenedHead):
            with torch.no_grad():  # (N, K), on its directions
                inputs = torch.cat([head.project(part) for part in self.features.split(4096)])
        for epoch in range(first_epoch, epochs + 1):
            started = time.perf_counter()
            generator = phase_generator(self.context.seed, "embedding", epoch)
            batches = draw_batches(rows, options.head_batch_size, generator, **together)
            batches = islice(batches, last_steps if epoch == epochs else None)
            total, seen, positives = self._run_epoch(head, loss, optimizer, batches, inputs)
            mean_loss = require_finite(total / seen, phase="embedding", epoch=epoch)
            seconds = time.perf_counter() - started
            shares = (positives / seen).tolist() if self._by_class is not None else [None, None]
            report = EpochReport("embedding", epoch, epochs, mean_loss, seconds, seen / seconds, None, *shares)
            self.context.on_epoch(report)
            if epoch % checkpoint_every == 0 or epoch == epochs:
                tensors = pack_modules(head=head, loss=loss) | pack_optimizer(optimizer)
                self.context.save(tensors, state={"epoch": epoch})
        trained = head.fold() if isinstance(head, WhitenedHead) else head
        return trained.eval().requires_grad_(False)

    def _run_epoch(
        self,
        head: TrainedHead,
        loss: MetricLoss,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[Tensor],
        inputs: Tensor,
    ) -> tuple[float, int, Tensor]:
        """Sum of the losses of the images, their number, and (2,) positives and samples without one."""
        by_class, seen, total = self._by_class, 0, torch.zeros((), device=self.context.device)
        positives = torch.zeros(2, device=self.context.device)
        for rows in batches:
            batch = Batch(self.labels[rows], None if by_class is None else take_rows(by_class, rows))
            if isinstance(head, WhitenedHead):
                value = loss(head.mix_directions(inputs[rows]), batch) + self.plan.l2_sp * head.drift()
            else:
                value = loss(head(inputs[rows]), batch)
            if (found := loss.positives) is not None:
                positives += torch.stack([found.sum(), (found == 0).sum()])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.detach() * len(rows)
            seen += len(rows)
        return total.item(), seen, positives

    def start(self) -> tuple[TrainedHead, MetricLoss, torch.optim.Optimizer, int]:
        """Head, loss and optimizer, new or from the checkpoint, and the next epoch.

        With --init wccn, within-class whitening initialises the head, and mean embeddings of the classes the proxies;
        the proxy of a class without images is random.
        """
        options, generator = self.config.head, phase_generator(self.context.seed, "embedding", 0)
        width, rows, own = self.plan.width, self._rows, None
        if options.init == "wccn":
            assert self.confidences is not None
            own, there = self.confidences.own, rows.to(self.features.device)
            parts = (part[there].cpu().numpy() for part in (self.features, self.labels))
            projection = fit_within_classes(*parts, weights=own[there].cpu().numpy(), embedding_dim=width)
            head: TrainedHead = WhitenedHead(projection.weight, projection.bias, embedding_dim=width)
        else:
            head = EmbeddingHead(self.features.shape[1], embedding_dim=width, generator=generator)
        loss = build_loss(
            self.config.loss.of_head, class_count=self.class_count, embedding_dim=width, generator=generator
        )
        if own is not None:
            start_proxies(
                loss,
                lambda part: head(self.features[part].cpu()),
                self.labels.cpu(),
                rows,
                weights=own.cpu(),
                shape=(self.class_count, width),
            )
        head, loss = head.to(self.context.device), loss.to(self.context.device)
        groups = [
            {"params": list(head.parameters()), "lr": options.head_lr, "weight_decay": options.weight_decay},
            *loss.parameter_groups(proxy_lr=options.proxy_lr, weight_decay=options.weight_decay),
        ]
        optimizer = torch.optim.AdamW(groups, fused=True)
        if (found := self.context.load()) is None:
            return head, loss, optimizer, 1
        tensors, state = found
        unpack_module(head, tensors, name="head")
        unpack_module(loss, tensors, name="loss")
        unpack_optimizer(optimizer, tensors)
        return head, loss, optimizer, state["epoch"] + 1


@torch.no_grad()
def start_proxies(
    loss: MetricLoss,
    embed: Callable[[Tensor], Tensor],
    labels: Tensor,
    rows: Tensor,
    *,
    weights: Tensor,
    shape: tuple[int, int],
) -> None:
    """Start the proxies of a loss at the (C, D) mean embeddings of their classes, of `rows`, with (N,) weights.

    A class without images keeps its proxy. All is on the CPU.
    """
    if not isinstance(loss, ProxyLoss):
        return
    sums = torch.zeros(shape)
    for part in rows.split(4096):
        sums.index_add_(0, labels[part], weights[part, None] * embed(part))
    loss.start_at(nn.functional.normalize(sums))


def count_epochs(config: HeadConfig, batches: int) -> tuple[int, int | None]:
    """Epochs of `batches` steps each, and the steps of the last one (None: all of them)."""
    if config.head_steps is None:
        return config.head_epochs, None
    epochs = -(-config.head_steps // batches)
    return epochs, config.head_steps - (epochs - 1) * batches
