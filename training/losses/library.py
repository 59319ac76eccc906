"""Losses of pytorch-metric-learning by their command-line names, with that library's defaults, to compare with.

| method               | class                             | defaults                                              |
| -------------------- | --------------------------------- | ----------------------------------------------------- |
| `triplet`            | TripletMarginLoss                 | margin 0.05, all triplets of the batch                |
| `contrastive`        | ContrastiveLoss                   | positive margin 0, negative margin 1                  |
| `lifted-structure`   | LiftedStructureLoss               | positive margin 0, negative margin 1                  |
| `circle`             | CircleLoss                        | m 0.4, gamma 80                                       |
| `soft-triple`        | SoftTripleLoss                    | 10 centres a class, lambda 20, gamma 0.1, margin 0.01 |
| `norm-softmax`       | NormalizedSoftmaxLoss             | temperature 0.05                                      |
| `fast-ap`            | FastAPLoss                        | 10 bins                                               |
| `cross-batch-memory` | CrossBatchMemory(ContrastiveLoss) | the last 1024 embeddings                              |

All on normalised embeddings: cosines for circle, soft-triple and norm-softmax, Euclidean distances (squared in fast-ap)
for the others. None has a miner: every pair or triplet of the batch, or of the batch with the memory, takes part.
Triplet, contrastive, circle and the memory average what costs something, the others everything. There are no options.
With few classes a large batch is slow: lifted-structure's memory and time grow with positive times negative pairs
(B^4 / C), triplet's with B^3.
"""

from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from index.errors import InputError, MissingDependencyError
from training.losses.interface import Batch, MetricLoss


class LibraryLoss(MetricLoss):
    """A loss of pytorch-metric-learning behind `MetricLoss`; its parameters and buffers are this module's."""

    kind: ClassVar[str]
    """The library's class."""
    inner: Any  # a module with attributes of its own

    def __init__(self, options: Any, *, embedding_dim: int, **others: Any) -> None:
        super().__init__(options, embedding_dim=embedding_dim, **others)
        from pytorch_metric_learning import losses

        self.inner = self._make(losses, embedding_dim=embedding_dim, **others)

    @classmethod
    def require_package(cls, method: str) -> None:
        """Refuse to go on without the library."""
        if find_spec("pytorch_metric_learning") is None:
            raise MissingDependencyError(
                package="pytorch-metric-learning", extra="losses", purpose=f"--method {method}"
            )

    def _make(self, library: Any, **sizes: Any) -> nn.Module:
        return getattr(library, self.kind)()

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings in at least float32; exactly 0 for a batch of none or without a pair."""
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        if not len(embeddings):  # the library's mean over no samples is not a number
            return 0 * sum((weights.sum() for weights in self.parameters()), start=embeddings.sum())
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.inner(embeddings, batch.labels)


Triplet, Contrastive, LiftedStructure, Circle, FastAP = (
    type(kind, (LibraryLoss,), {"kind": kind})
    for kind in ("TripletMarginLoss", "ContrastiveLoss", "LiftedStructureLoss", "CircleLoss", "FastAPLoss")
)


class SoftTriple(LibraryLoss):
    """A loss with weights, which the library draws from torch's global generator."""

    kind = "SoftTripleLoss"

    def _make(self, library: Any, **sizes: Any) -> nn.Module:
        seed = int(torch.randint(2**63 - 1, (), generator=sizes["generator"]))
        with torch.random.fork_rng(devices=[]):  # lend it a global generator, and leave that as it was
            torch.default_generator.manual_seed(seed)
            return getattr(library, self.kind)(num_classes=sizes["class_count"], embedding_size=sizes["embedding_dim"])


class NormSoftmax(SoftTriple):
    kind = "NormalizedSoftmaxLoss"


class CrossBatchMemory(LibraryLoss):
    """The library's loss over the batch and a memory of the last embeddings.

    The library keeps the memory in buffers, but its fill level in attributes that no state dict has.
    """

    def _make(self, library: Any, **sizes: Any) -> nn.Module:
        return library.CrossBatchMemory(library.ContrastiveLoss(), embedding_size=sizes["embedding_dim"])

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss; the embeddings then stay in the memory."""
        if len(embeddings) > self.inner.memory_size:
            raise InputError(
                f"--method cross-batch-memory remembers {self.inner.memory_size} embeddings, but a batch has "
                f"{len(embeddings)}: lower --head-batch-size"
            )
        return super().forward(embeddings, batch)

    def get_extra_state(self) -> Tensor:
        """(2,) int64: next place in the memory, and 1 once it is full; a tensor for checkpoints."""
        return torch.tensor([self.inner.queue_idx, self.inner.has_been_filled])

    def set_extra_state(self, state: Tensor) -> None:
        """From `get_extra_state`."""
        next_place, is_full = state.tolist()
        self.inner.queue_idx, self.inner.has_been_filled = next_place, bool(is_full)
