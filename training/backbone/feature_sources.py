"""Where the two training loops get features from: the cache, or the backbone itself on fresh random views."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from index.images.image_files import read_image
from training.backbone.extract import Extractor
from training.data.transforms import random_view


class FeatureSource(Protocol):
    """Features of N training images.

    `centre` is (N, F) float32, the features of the centre crops; `views` is how many fixed views an image has, None
    where every one is new.
    """

    centre: Tensor
    views: int | None

    def batch(self, rows: Tensor, *, generator: torch.Generator) -> Tensor:
        """(B,) row numbers to (B, F) float32 features of one view an image, drawn by the generator."""


class CachedSource:
    """Fixed views from the feature store, in memory.

    Args:
        views: (N, V, F) float32; view 0 is the centre crop.
    """

    def __init__(self, views: Tensor) -> None:
        self.centre = views[:, 0]
        self.views: int | None = views.shape[1]
        self._views = views

    def batch(self, rows: Tensor, *, generator: torch.Generator) -> Tensor:
        if self.views == 1:
            return self.centre[rows]
        drawn = torch.randint(self._views.shape[1], (len(rows),), generator=generator)
        return self._views[rows, drawn.to(rows.device)]


class LiveSource:
    """A random crop and flip of every image each time it is asked for, through the backbone.

    Args:
        centre: (N, F) float32 features of their centre crops.
    """

    def __init__(self, paths: Sequence[Path], *, centre: Tensor, extractor: Extractor, workers: int) -> None:
        self.centre = centre
        self.views: int | None = None
        self._paths, self._extractor = paths, extractor
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def batch(self, rows: Tensor, *, generator: torch.Generator) -> Tensor:
        seeds = torch.randint(2**62, (len(rows),), generator=generator).tolist()
        views = list(self._pool.map(self._view, rows.tolist(), seeds))
        return self._extractor.extract(np.stack(views)).to(self.centre.device).clone()

    def _view(self, row: int, seed: int) -> np.ndarray:
        config = self._extractor.preprocess
        image = read_image(self._paths[row], target_side=config.resize).image
        return random_view(image, config, generator=np.random.default_rng(seed))
