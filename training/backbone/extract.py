"""Images to backbone features: one overlapped pass of decode and inference, kept in the feature store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from index.errors import ImageError
from index.images.image_files import decode_image, read_bytes
from index.images.preprocess import DECODING_VERSION, Pixels, PreprocessConfig
from index.model.backends.backend import InferenceBackend
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.backbone.backbones import Backbone, arrange_images
from training.backbone.feature_store import Features, FeatureStore
from training.backbone.freed_memory import keep_freed_memory
from training.backbone.pooling import POOLING_VERSION
from training.data.datasets import SkippedImage
from training.data.transforms import DrawViews, fixed_views
from training.options.machine import PRECISIONS
from training.options.runtimes import TORCH

BATCH_IMAGES = 32
SHARD_BATCHES = 32


class Extractor:
    """A frozen backbone on its device, in the fastest precision that the device computes natively: torch computes it.

    `computed_by` makes one that leaves `extract` to another runtime.

    Args:
        backbone: in eval mode.
        preprocess: size, mean and std of its input.
        precision: `auto`, `float32` or `bfloat16`.

    Attributes:
        dtype: torch computes in it.
        mean, std: (1, 3, 1, 1), for values in 0..255.
    """

    def __init__(
        self, backbone: Backbone, preprocess: PreprocessConfig, *, device: torch.device, precision: str = "auto"
    ) -> None:
        self.backbone = backbone
        self.preprocess = preprocess
        self.device = device
        self.dtype = resolve_precision(precision, device)
        self._module = backbone.module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mean = 255 * torch.tensor(preprocess.mean, device=device).view(1, 3, 1, 1)
        self.std = 255 * torch.tensor(preprocess.std, device=device).view(1, 3, 1, 1)
        self._graph: InferenceBackend | None = None

    def computed_by(self, graph: InferenceBackend) -> Extractor:
        """The same features by the backbone's graph, which a runtime has opened, as long as the weights are these."""
        other = copy(self)
        other._graph = graph
        return other

    @property
    def runtime(self) -> str:
        """What computes the features."""
        return TORCH if self._graph is None else self._graph.name

    @property
    def precision(self) -> str:
        """The numbers that the features are computed with; a graph's are float32 unless its runtime has others."""
        if self._graph is None:
            return str(self.dtype).removeprefix("torch.")
        return self._graph.precision if self._graph.precision in PRECISIONS else "float32"

    @torch.inference_mode()
    def extract(self, pixels: Pixels) -> Tensor:
        """(N, H, W, 3) uint8 to (N, F) float32 on the device."""
        if self._graph is not None:
            return torch.from_numpy(self._graph.run(pixels)).to(self.device)
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        return self.finish(self._module, arrange_images(images, self.mean, self.std))

    @torch.inference_mode()
    def finish(self, run: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """(N, F) float32 on the device, by the module or a part of it that ends as it does, in torch's precision."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            return run(inputs.to(self.device)).flatten(1).float()

    def describe(self, *, views: int) -> dict[str, object]:
        """All that the features depend on beside the image; view, pooling and runtime only where they are not usual.

        The whole image is what it is by `preprocess` alone. Two runtimes differ in the last bits even in one precision,
        so that their features lie apart: what is in a store does not depend on who filled it first.
        """
        backbone = self.backbone
        unusual = {
            **({"view": "both", "side": backbone.side} if backbone.view == "both" else {}),
            **({} if backbone.pooling == "own" else {"pooling": f"{backbone.pooling}, {POOLING_VERSION}"}),
            **({} if self.runtime == TORCH else {"runtime": self.runtime}),
        }
        return {
            "backbone": self.backbone.name,
            "weights_sha256": self.backbone.hash_weights(),
            "preprocess": self.preprocess.to_json(),
            "views": views,
            "precision": self.precision,
            "decoding": f"{DECODING_VERSION}, Pillow {PIL.__version__}",
            **unusual,
        }


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """bfloat16 where `auto` finds hardware for it, else float32."""
    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    native = flags.get("avx512_bf16") or flags.get("amx_bf16") or flags.get("bf16")
    return torch.bfloat16 if native else torch.float32


def open_store(cache: Path, extractor: Extractor, *, views: int, draw: DrawViews = fixed_views) -> FeatureStore:
    """The store of these features below the cache folder; it does not depend on a seed or on a run."""
    description = extractor.describe(views=views)
    if draw is not fixed_views:
        description["draw"] = draw.__name__
    key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    return FeatureStore(cache / f"{folder_name(extractor.backbone)}-{key}", description=description)


def folder_name(backbone: Backbone) -> str:
    """What files of a backbone are called by: other libraries' names hold : and /."""
    return re.sub(r"[^\w.-]", "_", backbone.name)


@dataclass(frozen=True, slots=True)
class ExtractedSet:
    """The usable images of a list: `rows` (n,) int64 into the list, their hashes, and what was skipped.

    `computed` counts the images that the backbone saw; the others came from the store.
    """

    rows: np.ndarray
    hashes: tuple[str, ...]
    skipped: tuple[SkippedImage, ...]
    computed: int


@dataclass(frozen=True, slots=True)
class _Read:
    sha256: str
    views: Pixels | None  # None: the store has it


@keep_freed_memory()
def extract_features(
    paths: Sequence[Path],
    *,
    store: FeatureStore,
    extractor: Extractor,
    views: int,
    workers: int,
    draw: DrawViews = fixed_views,
    progress: Progress = no_progress,
) -> ExtractedSet:
    """See that the store holds the features of every usable image.

    Interrupted, it keeps every batch done; killed, all but the last shard.

    Args:
        paths: images in a fixed order; an image is known again by its content, wherever it lies.
        store, extractor: where features go and come from.
        views: V fixed views an image.
        draw: makes them, as for the store.
        progress: called with (images done, images).
    """
    rows: list[int] = []
    hashes: list[str] = []
    skipped: list[SkippedImage] = []
    pending = _PendingBatches(store, extractor)

    def read(path: Path) -> _Read | ImageError:
        try:
            data = read_bytes(path)
            sha256 = hashlib.sha256(data).hexdigest()
            if sha256 in store:
                return _Read(sha256, None)
            image = decode_image(data, name=str(path), target_side=extractor.preprocess.resize)
        except ImageError as error:
            return error.apart()
        return _Read(sha256, draw(image, extractor.preprocess, count=views, sha256=sha256))

    try:
        for row, result in enumerate(map_ahead(read, paths, workers=workers, ahead=3 * BATCH_IMAGES)):
            if isinstance(result, ImageError):
                skipped.append(SkippedImage(paths[row], result.reason, result.detail))
            else:
                rows.append(row)
                hashes.append(result.sha256)
                if result.views is not None:
                    pending.add(result.sha256, result.views)
            progress(row + 1, len(paths))
        pending.compute()
    finally:
        pending.save()
    return ExtractedSet(np.array(rows, dtype=np.int64), tuple(hashes), tuple(skipped), pending.computed)


class _PendingBatches:
    """Collects views into batches of a fixed size for the backbone, and batches into shards for the store."""

    def __init__(self, store: FeatureStore, extractor: Extractor) -> None:
        self._store, self._extractor = store, extractor
        self._views: dict[str, Pixels] = {}
        self._hashes: list[str] = []
        self._features: list[Features] = []
        self.computed = 0

    def add(self, sha256: str, views: Pixels) -> None:
        if sha256 in self._views or sha256 in self._hashes:
            return  # the same content twice in one pass
        self._views[sha256] = views
        if len(self._views) == BATCH_IMAGES:
            self.compute()
        if len(self._features) == SHARD_BATCHES:
            self.save()

    def compute(self) -> None:
        """Run the backbone on what waits.

        The batch is always filled up to its full size: kernels differ by batch size in their last bits, and an image's
        features must not depend on how many others happened to be new.
        """
        if not self._views:
            return
        pixels = np.stack(list(self._views.values()))  # (n, V, H, W, 3)
        count, views = pixels.shape[:2]
        filled = np.concatenate([pixels, np.repeat(pixels[-1:], BATCH_IMAGES - count, axis=0)])
        features = [self._extractor.extract(filled[:, view])[:count].cpu().numpy() for view in range(views)]
        self._features.append(np.stack(features, axis=1))
        self._hashes += self._views
        self._views = {}
        self.computed += count

    def save(self) -> None:
        if self._features:
            self._store.add(self._hashes, np.concatenate(self._features))
            self._hashes, self._features = [], []
