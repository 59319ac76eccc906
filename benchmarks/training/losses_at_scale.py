"""Proxy-Anchor and Smooth Proxy-Anchor with very many classes: time, memory and agreement with other code.

    python -m benchmarks.training.losses_at_scale --out bench/losses

Forward and backward of a batch. Every contestant runs in a process of its own, and they take turns; the table has
medians, and the least and the most. Memory is the most that is resident and not of a file, above what was there with
the inputs: gradients count. The formulas of others are written as their public code has them, over all classes at once.
On a busy machine the processor time tells more than the clock. A command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from benchmarks.common.parts import Part, make_parser, measure_in_turns, parse_counts, print_parts
from benchmarks.common.record import digest, hash_code
from benchmarks.common.tables import format_spread, format_table, spread
from training.losses.anchor_loss import anchor_loss, confidence_pairs, label_pairs

MIB = 1 << 20
MODULE = "benchmarks.training.losses_at_scale"
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


CONTESTANTS: Mapping[str, Mapping[str, Loss]] = {
    "proxy-anchor": {"ours": ours, "the authors' formula": of_the_authors, "pytorch-metric-learning": of_the_library},
    "smooth": {"ours": smooth_ours, "the formula at once": smooth_at_once},
}


def measure_loss(loss: Loss, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by clock and of processors, the peak beside what is given; gradients go into a file."""
    embeddings, proxies, labels, confidences = make_inputs(settings)

    def run() -> None:
        embeddings.grad = proxies.grad = None
        loss(embeddings, proxies, labels, confidences).backward()

    found = _repeat(run, settings["repeats"])
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


def _repeat(run: Callable[[], None], repeats: int) -> dict[str, Any]:
    before, peaks, ended = _own_bytes(), [0], threading.Event()

    def sample() -> None:
        while not ended.wait(_EVERY_S):
            peaks.append(_own_bytes())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    seconds, cpu_seconds = [], []
    for _ in range(repeats + 1):
        started, cpu_started = time.perf_counter(), time.process_time()
        run()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
    ended.set()
    sampler.join()
    return {"seconds": seconds[1:], "cpu_seconds": cpu_seconds[1:], "peak_bytes": max(peaks) - before}


def _own_bytes() -> int:
    """Resident memory of this process that is not of a file."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def measure(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every contestant in every round, by name, and how far each is from the first; what was measured is kept."""
    sizes = {name: getattr(options, name) for name in ("batch", "classes", "width", "seed", "repeats")}
    folder = options.out / f"kept-{digest([sizes, hash_code('training/losses', 'benchmarks/training')])}"
    gradients = {name: folder / f"gradients-{part}-{place}.npz" for place, name in enumerate(CONTESTANTS[part])}
    settings = {name: {"gradients": str(file), **sizes} for name, file in gradients.items()}
    found = measure_in_turns(MODULE, part, settings, folder=folder, rounds=options.rounds)
    rows = {name: summarise(runs) for name, runs in found.items()}
    for name, row in rows.items():
        row["apart"] = compare(gradients[name], gradients[next(iter(rows))])
    return {"part": part, **sizes, "rows": rows}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all rounds together."""
    return {
        "seconds": spread([statistics.median(run["seconds"]) for run in runs]),
        "cpu_seconds": spread([statistics.median(run["cpu_seconds"]) for run in runs]),
        "peak_bytes": spread([run["peak_bytes"] for run in runs]),
        "rounds": list(runs),
    }


def compare(path: Path, first: Path) -> dict[str, float]:
    """How far the gradients in one file are from those in another, by their length."""
    with np.load(path) as found, np.load(first) as wanted:
        return {
            name: float(np.linalg.norm(found[name] - wanted[name]) / np.linalg.norm(wanted[name])) for name in found
        }


def tabulate(results: Mapping[str, Any]) -> str:
    """A row for each contestant, with ratios of the medians to those of the first."""
    rows, own = [], next(iter(results["rows"].values()))
    for name, row in results["rows"].items():
        cells = [name, format_spread(row["seconds"], digits=2)]
        cells += [f"{_times(row, own, key):.2f}" for key in ("seconds", "cpu_seconds")]
        cells.append(f"{row['peak_bytes']['median'] / MIB:,.0f}")
        apart = row["apart"]
        cells.append(f"{_times(row, own, 'peak_bytes'):.1f}")
        rows.append([*cells, f"{apart['embeddings']:.0e}, {apart['proxies']:.0e}"])
    head = ["", "seconds", "of ours", "processor time, of ours", "peak MiB", "of ours"]
    head.append("gradients apart (embeddings, proxies)")
    sizes = f"{results['classes']:,} classes, batch {results['batch']}, {results['width']}-d"
    return f"{results['part']}: {sizes}\n\n{format_table(head, rows)}"


def _times(row: Mapping[str, Any], own: Mapping[str, Any], key: str) -> float:
    ratio: float = row[key]["median"] / own[key]["median"]
    return ratio


PARTS = {part: Part(lambda options, part=part: measure(part, options), tabulate) for part in CONTESTANTS}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=512, help="of the embedding (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="in each process, after one that does not count")
    return parse_counts(parser, arguments, "batch", "classes", "width", "repeats")


def run_contestant() -> None:
    """One contestant: settings on stdin, figures on stdout, as JSON."""
    settings = json.load(sys.stdin)
    Path(settings["gradients"]).parent.mkdir(parents=True, exist_ok=True)
    json.dump(measure_loss(CONTESTANTS[settings["part"]][settings["contestant"]], settings), sys.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    print_parts(PARTS, parse_options(arguments))


if __name__ == "__main__":
    run_contestant() if sys.argv[1:] == ["alone"] else main()
