"""PRISM (Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from training.losses.interface import Batch, ProxyLoss, average_losses
from training.losses.proxy_nca import proxy_nca_losses, scale_for
from training.options.losses import PrismOptions

MARGIN = 0.5  # cosine up to which a negative pair costs nothing, as in the authors' code
EMPTY = -1  # label of a free place of the memory


@torch.no_grad()
def clean_probabilities(unit: Tensor, labels: Tensor, memory: Tensor, remembered: Tensor, *, classes: int) -> Tensor:
    """Probability that each sample belongs to its label, by the class means of the memory.

        T(i, k) = mean over the members j of class k in the memory of cosine(x_i, x_j)
        P(i)    = exp T(i, y_i) / sum over the classes k in the memory of exp T(i, k)

    The mean of cosines is the cosine with the class mean (the paper's acceleration). P is 1 where the memory has no
    image of the label.

    Args:
        unit: (B, D) normalised embeddings.
        labels: (B,) int64.
        memory: (M, D) normalised embeddings.
        remembered: (M,) int64 their labels, `EMPTY` for a free place.
    """
    places = torch.where(remembered == EMPTY, classes, remembered)  # free places form one more class
    counted = torch.cat([memory, memory.new_ones(len(memory), 1)], dim=1)
    # accumulate sums in a fixed order, also on a GPU, where index_add does not
    added = memory.new_zeros(classes + 1, counted.shape[1]).index_put_((places,), counted, accumulate=True)[:classes]
    sums, counts = added[:, :-1], added[:, -1]
    cosines = unit @ (sums / counts.clamp(min=1)[:, None]).to(unit.dtype).T
    found = cosines.masked_fill(counts == 0, -math.inf).log_softmax(dim=1).exp()
    return torch.where(counts[labels] > 0, found.gather(1, labels[:, None])[:, 0], 1)


def _pair_losses(cosines: Tensor, same: Tensor, pairs: Tensor) -> Tensor:
    """(B,) sums over the pairs of each row: 1 - cosine of positive ones, and [cosine - margin]_+ of negative ones."""
    return torch.where(same, 1 - cosines, (cosines - MARGIN).relu()).masked_fill(~pairs, 0).sum(dim=1)


class Prism(ProxyLoss):
    """A base loss over the samples whose label is probably right; only those enter the memory.

    Smooth top-R (sTRM): of a batch, the largest P among the int(R B) least ones is noted, unless it is 1. A sample
    trains if its P is above the mean of the last `prism_window` notes. If no sample of the batch trains, older
    thresholds are dropped. All samples train in the first `prism_warm_up` batches, and until the first note.

    Memory contrastive is the sum over pairs within the batch, averaged over the samples that train, plus the sum over
    pairs with the memory, averaged over the batch, as in the authors' code. The memory has the samples of earlier
    batches. Proxy-NCA is averaged over the samples that train.
    """

    memory: Tensor
    remembered: Tensor
    thresholds: Tensor
    batches: Tensor

    def __init__(
        self, options: PrismOptions, *, class_count: int, embedding_dim: int, generator: torch.Generator, **others: Any
    ) -> None:
        super().__init__(options, class_count=class_count, embedding_dim=embedding_dim, generator=generator, **others)
        self.class_count = class_count
        if options.prism_base != "proxy-nca":
            del self.proxies
        self.register_buffer("memory", torch.zeros(options.prism_memory, embedding_dim))  # the oldest first
        self.register_buffer("remembered", torch.full((options.prism_memory,), EMPTY))
        self.register_buffer("thresholds", torch.zeros(options.prism_window))  # the oldest first; 0: none noted
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def start_at(self, means: Tensor) -> None:
        """Set the proxies, if the base has some."""
        if self.options.prism_base == "proxy-nca":
            super().start_at(means)

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from labels alone; the samples that train then enter the memory."""
        with torch.autocast(embeddings.device.type, enabled=False):
            unit = nn.functional.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
            selected = self._select(unit.detach(), batch.labels)
            if self.options.prism_base == "proxy-nca":
                scale = self.options.nca_scale or scale_for(self.class_count)
                loss = average_losses(proxy_nca_losses(unit, self.proxies, batch.labels, scale=scale), selected)
            else:
                loss = self._memory_contrastive(unit, batch.labels, selected)
        self._remember(unit.detach()[selected], batch.labels[selected])
        return loss

    @torch.no_grad()
    def _select(self, unit: Tensor, labels: Tensor) -> Tensor:
        """(B,) bool, which samples train."""
        found = clean_probabilities(unit, labels, self.memory, self.remembered, classes=self.class_count)
        if not len(found):
            return found > 0
        if removed := int(self.options.prism_rate * len(found)):
            last = found.sort().values[removed - 1].to(self.thresholds.dtype)
            noted = torch.cat([self.thresholds[1:], last[None]])
            self.thresholds = torch.where(last < 1, noted, self.thresholds)
        none = (found <= self._mean_threshold()).all()
        self.thresholds = torch.cat([self.thresholds[:-1].masked_fill(none, 0), self.thresholds[-1:]])
        selected = (found > self._mean_threshold()) | (self.batches < self.options.prism_warm_up)
        self.batches = self.batches + 1
        return selected

    def _mean_threshold(self) -> Tensor:
        """() mean of the noted thresholds; 0 without one."""
        return self.thresholds.sum() / (self.thresholds > 0).sum().clamp(min=1)

    def _memory_contrastive(self, unit: Tensor, labels: Tensor, selected: Tensor) -> Tensor:
        others = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        within = _pair_losses(unit @ unit.T, labels[:, None] == labels, selected & others)
        same = labels[:, None] == self.remembered
        beyond = _pair_losses(unit @ self.memory.to(unit.dtype).T, same, selected[:, None] & (self.remembered != EMPTY))
        return average_losses(within, selected) + average_losses(beyond)

    def _remember(self, unit: Tensor, labels: Tensor) -> None:
        """Add samples to the memory in the place of the oldest."""
        size = len(self.memory)
        self.memory = torch.cat([self.memory, unit.to(self.memory.dtype)])[-size:]
        self.remembered = torch.cat([self.remembered, labels])[-size:]
