"""PRISM as loops over its equations, on 0-d float64 tensors, whose gradient is autograd's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.oracles.losses import cosine


@dataclass(slots=True)
class PrismOracle:
    """PRISM with its memory: (embedding, label) pairs, the oldest first."""

    rate: float
    size: int
    window: int
    warm_up: int = 0
    memory: list[tuple[Tensor, int]] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    batches: int = 0

    def probability(self, embedding: Tensor, label: int) -> float:
        """P(i) by the mean cosine with every member of every class in the memory."""
        mean = {}
        for k in {other for _, other in self.memory}:
            members = [x for x, other in self.memory if other == k]
            mean[k] = sum(cosine(embedding, x).item() for x in members) / len(members)
        if label not in mean:
            return 1.0
        return math.exp(mean[label]) / sum(math.exp(value) for value in mean.values())

    def select(self, embeddings: Sequence[Tensor], labels: Sequence[int]) -> list[bool]:
        found = [self.probability(x, y) for x, y in zip(embeddings, labels, strict=True)]
        removed = int(self.rate * len(found))
        if removed and (last := sorted(found)[removed - 1]) < 1:
            self.thresholds = [*self.thresholds, last][-self.window :]
        if self.thresholds:
            if all(p <= sum(self.thresholds) / len(self.thresholds) for p in found):
                self.thresholds = self.thresholds[-1:]
            threshold = sum(self.thresholds) / len(self.thresholds)
        else:
            threshold = 0.0
        warms = self.batches < self.warm_up
        self.batches += 1
        return [warms or p > threshold for p in found]

    def memory_contrastive(
        self, embeddings: Sequence[Tensor], labels: Sequence[int], selected: Sequence[bool]
    ) -> Tensor:
        """Memory contrastive loss of the selected samples."""
        chosen = [i for i, trains in enumerate(selected) if trains]
        within = beyond = embeddings[0].sum() * 0
        for i in chosen:
            for j in chosen:
                if i != j:
                    within = within + _pair(cosine(embeddings[i], embeddings[j]), labels[i] == labels[j])
            for x, label in self.memory:
                beyond = beyond + _pair(cosine(embeddings[i], x), labels[i] == label)
        return within / max(len(chosen), 1) + beyond / len(embeddings)

    def remember(self, embeddings: Sequence[Tensor], labels: Sequence[int], selected: Sequence[bool]) -> None:
        kept = [(x.detach(), y) for x, y, trains in zip(embeddings, labels, selected, strict=True) if trains]
        self.memory = [*self.memory, *kept][-self.size :]


def _pair(similarity: Tensor, same: bool) -> Tensor:
    return 1 - similarity if same else torch.clamp(similarity - 0.5, min=0)
