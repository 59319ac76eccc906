"""The training loop that people write: a network of torchvision, a DataLoader of two workers, Proxy-Anchor, AdamW.

`python -m benchmarks.training.network_loop < settings.json` prints one JSON document. Images are decoded and cropped
anew in every epoch, as in the tutorials; the loss is pytorch-metric-learning's, batch norm is frozen as by the authors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import torchvision
from PIL import Image
from pytorch_metric_learning.losses import ProxyAnchorLoss
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.indexing.index_peers import CLASSIFIERS
from index.images.preprocess import IMAGENET_MEAN, IMAGENET_STD

_RATE, _PROXY_TIMES = 1e-4, 100  # of AdamW, and how much faster proxies learn: the authors' values
_LARGER, _WHOLE = 256, 224  # pixels a side of what is searched: scaled to, cropped to


def run_loop(
    *, train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]], backbone: str, weights: str | None,
    width: int, side: int, batch: int, epochs: int, workers: int, bfloat16: bool, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Train for some epochs, then search the test images; seconds of each epoch, and Recall@1.

    Args:
        train, test: path and label of each image.
        bfloat16: autocast and channels_last, as the tuning guides have it; else float32 as it comes.
    """
    torch.manual_seed(seed)
    network = torchvision.models.get_model(backbone, weights=None)
    if weights is not None:
        network.load_state_dict(load_file(weights))
    features = cast(nn.Linear, list(network.modules())[-1]).in_features
    setattr(network, CLASSIFIERS[backbone], nn.Linear(features, width))
    layout = torch.channels_last if bfloat16 else torch.contiguous_format
    network = network.to(memory_format=layout)
    names = sorted({label for _, label in train})
    loss = ProxyAnchorLoss(len(names), width)
    optimizer = torch.optim.AdamW([
        {"params": network.parameters()}, {"params": loss.parameters(), "lr": _PROXY_TIMES * _RATE},
    ], lr=_RATE)  # fmt: skip
    loader: DataLoader[Any] = DataLoader(
        cast(Any, _Photos([(path, names.index(label)) for path, label in train], _augment(side))), batch,
        shuffle=True, num_workers=workers,
    )  # fmt: skip
    seconds = []
    for _ in range(epochs):
        started = time.perf_counter()
        _learn(network)
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                embeddings = network(images.to(memory_format=layout))
            loss(embeddings.float(), labels).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - started)
    return {"epoch_seconds": seconds, "recall_at_1": _search(network.eval(), test, workers=workers)}


def _learn(network: nn.Module) -> None:
    """Train, but for batch norm, which stays as it is: as the authors' code has it, and ours."""
    network.train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@torch.inference_mode()
def _search(network: nn.Module, test: Sequence[tuple[str, str]], *, workers: int) -> float:
    """The share of test images whose nearest other one has their label."""
    usual = transforms.Compose([transforms.Resize((_LARGER, _LARGER)), transforms.CenterCrop(_WHOLE), *_numbers()])
    loader: DataLoader[Any] = DataLoader(
        cast(Any, _Photos([(path, 0) for path, _ in test], usual)), 32, num_workers=workers
    )
    embeddings = nn.functional.normalize(torch.cat([network(images) for images, _ in loader]))
    scores = (embeddings @ embeddings.T).fill_diagonal_(-2)
    labels = np.array([label for _, label in test])
    return float((labels[scores.argmax(1).numpy()] == labels).mean())


def _augment(side: int) -> transforms.Compose:
    return transforms.Compose([transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), *_numbers()])


def _numbers() -> list[Any]:
    return [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]


class _Photos:
    """A map-style dataset of paths and numbers of classes."""

    def __init__(self, photos: Sequence[tuple[str, int]], transform: transforms.Compose) -> None:
        self._photos, self._transform = photos, transform

    def __len__(self) -> int:
        return len(self._photos)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path, label = self._photos[number]
        with Image.open(path) as image:
            return self._transform(image.convert("RGB")), label


if __name__ == "__main__":
    print(json.dumps(run_loop(**json.load(sys.stdin))))
