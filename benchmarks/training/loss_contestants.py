"""One contestant of `benchmarks.training.losses_at_scale` in a process of its own: settings in, figures out, as JSON.

The formulas are written as their authors' public code has them, over all classes at once; nothing here is tuned.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common.processes import read_memory, sampling
from training.losses.anchor_loss import anchor_loss, confidence_pairs, label_pairs

ALPHA, DELTA, LAMBDA, BETA = 32.0, 0.1, 0.1, 100.0
HIDDEN = 512  # of the confidence module
COMPARED_PROXIES = 2000
_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class _ModuleColumns:
    """(B, C) confidences as factors: (B, hidden) after the ReLU, weight (C, hidden) and bias (C,)."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def columns(self, start: int, stop: int) -> Tensor:
        """(B, stop - start) in 0..1, of the classes start..stop-1."""
        return nn.functional.linear(self.hidden, self.weight[start:stop], self.bias[start:stop]).sigmoid_()


Loss = Callable[[Tensor, nn.Parameter, Tensor, _ModuleColumns], Tensor]


def ours(embeddings: Tensor, proxies: nn.Parameter, labels: Tensor, _: _ModuleColumns) -> Tensor:
    return anchor_loss(embeddings, proxies, label_pairs(labels), alpha=ALPHA, margins=DELTA)[0]


def of_the_authors(embeddings: Tensor, proxies: nn.Parameter, labels: Tensor, _: _ModuleColumns) -> Tensor:
    """As in github.com/tjddus9597/Proxy-Anchor-CVPR2020, `binarize` by torch instead of scikit-learn."""
    cosines = nn.functional.linear(_l2_norm(embeddings), _l2_norm(proxies))
    one_hot = nn.functional.one_hot(labels, len(proxies)).float()
    other = 1 - one_hot
    pull, push = torch.exp(-ALPHA * (cosines - DELTA)), torch.exp(ALPHA * (cosines + DELTA))
    with_positive = torch.nonzero(one_hot.sum(dim=0) != 0).squeeze(dim=1)
    pulled = torch.where(one_hot == 1, pull, torch.zeros_like(pull)).sum(dim=0)
    pushed = torch.where(other == 1, push, torch.zeros_like(push)).sum(dim=0)
    return torch.log(1 + pulled).sum() / len(with_positive) + torch.log(1 + pushed).sum() / len(proxies)


def _l2_norm(rows: Tensor) -> Tensor:
    norm = torch.sqrt(torch.pow(rows, 2).sum(dim=1).add_(1e-12))
    return torch.div(rows, norm.view(-1, 1).expand_as(rows))


def of_the_library(embeddings: Tensor, proxies: nn.Parameter, labels: Tensor, _: _ModuleColumns) -> Tensor:
    """pytorch-metric-learning's."""
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    with torch.device("meta"):  # its own proxies are not made: these are taken
        loss = ProxyAnchorLoss(len(proxies), proxies.shape[1], margin=DELTA, alpha=ALPHA)
    loss.proxies = proxies
    found: Tensor = loss(embeddings, labels)
    return found


def smooth_ours(embeddings: Tensor, proxies: nn.Parameter, _: Tensor, confidences: _ModuleColumns) -> Tensor:
    pairs = confidence_pairs(confidences, lambda_=LAMBDA, beta=BETA)
    return anchor_loss(embeddings, proxies, pairs, alpha=ALPHA, margins=DELTA)[0]


def smooth_at_once(embeddings: Tensor, proxies: nn.Parameter, _: Tensor, confidences: _ModuleColumns) -> Tensor:
    """Equations 5 and 7 of the paper over all classes at once; it has no public code."""
    known = confidences.columns(0, len(proxies))
    cosines = nn.functional.normalize(embeddings) @ nn.functional.normalize(proxies).T
    weights, positive = torch.sigmoid(BETA * (known - LAMBDA)), known > LAMBDA
    pull = (positive * weights * torch.exp(-ALPHA * (cosines - DELTA))).sum(dim=0)
    push = (~positive * (1 - weights) * torch.exp(ALPHA * (cosines + DELTA))).sum(dim=0)
    with_positive = positive.any(dim=0).sum().clamp(min=1)
    return torch.log(1 + pull).sum() / with_positive + torch.log(1 + push).mean()


PROXY_ANCHOR: Mapping[str, Loss] = {
    "ours": ours,
    "the authors' formula": of_the_authors,
    "pytorch-metric-learning": of_the_library,
}
SMOOTH: Mapping[str, Loss] = {"ours": smooth_ours, "the formula at once": smooth_at_once}


def measure_loss(loss: Loss, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by clock and of processors, the peak beside what is given, the value; gradients go into a file."""
    embeddings, proxies, labels, confidences = make_inputs(settings)

    def run() -> float:
        embeddings.grad = proxies.grad = None
        value = loss(embeddings, proxies, labels, confidences)
        value.backward()
        return value.item()

    found = _measure(run, settings["repeats"])
    assert embeddings.grad is not None
    assert proxies.grad is not None
    chosen = choose_proxies(len(proxies), labels)
    np.savez(settings["gradients"], embeddings=embeddings.grad.numpy(), proxies=proxies.grad[chosen].numpy())
    return found


def make_inputs(settings: Mapping[str, Any]) -> tuple[Tensor, nn.Parameter, Tensor, _ModuleColumns]:
    """(B, D) embeddings, (C, D) proxies, (B,) labels of four images each, and confidences above lambda for a few."""
    batch, classes, width = settings["batch"], settings["classes"], settings["width"]
    generator = torch.Generator().manual_seed(settings["seed"])
    embeddings = torch.randn(batch, width, generator=generator).requires_grad_()
    proxies = nn.Parameter(torch.randn(classes, width, generator=generator))
    labels = torch.randint(classes, (-(-batch // 4),), generator=generator).repeat_interleave(4)[:batch]
    has_confidences = settings["part"] == "smooth"
    weight = torch.randn(classes if has_confidences else 0, HIDDEN, generator=generator)
    hidden = nn.functional.normalize(torch.randn(batch, HIDDEN, generator=generator).relu())
    return embeddings, proxies, labels, _ModuleColumns(hidden, weight, torch.full((len(weight),), -6.0))


def choose_proxies(classes: int, labels: Tensor) -> Tensor:
    """Some thousand proxies spread over all, and those of the batch."""
    return torch.cat([torch.linspace(0, classes - 1, min(classes, COMPARED_PROXIES)).long(), labels]).unique()


def _measure(run: Callable[[], float], repeats: int) -> dict[str, Any]:
    before, peaks = read_memory()["anonymous"], [0]
    with sampling(lambda: peaks.append(read_memory()["anonymous"]), every_s=_EVERY_S):
        seconds, cpu_seconds = [], []
        for _ in range(repeats + 1):
            started, cpu_started = time.perf_counter(), time.process_time()
            value = run()
            seconds.append(time.perf_counter() - started)
            cpu_seconds.append(time.process_time() - cpu_started)
    return {"seconds": seconds[1:], "cpu_seconds": cpu_seconds[1:], "peak_bytes": max(peaks) - before, "value": value}


def main() -> None:
    settings = json.load(sys.stdin)
    Path(settings["gradients"]).parent.mkdir(parents=True, exist_ok=True)
    contestants = PROXY_ANCHOR if settings["part"] == "proxy-anchor" else SMOOTH
    json.dump(measure_loss(contestants[settings["contestant"]], settings), sys.stdout)


if __name__ == "__main__":
    main()
