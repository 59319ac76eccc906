"""Feature extraction: decoding and inference in one pass, and the feature store."""

import ctypes
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from torch import Tensor

from index.durable import replacing, write_durably
from index.errors import ImageError, InputError
from index.images.decode import return_memory
from index.images.image_files import decode_image, read_bytes
from index.images.preprocess import DECODING_VERSION, Pixels, PreprocessConfig
from index.progress import Progress, no_progress
from index.threads import map_ahead
from training.backbone.backbones import Backbone, arrange_images
from training.backbone.convolutions import CONVOLUTIONS_VERSION, Convolution, find_convolutions, standing_in
from training.backbone.pooling import POOLING_VERSION
from training.data.transforms import edited_views

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_KEEP = (1 << 31) - 1
_GIVE_BACK = 32 << 20  # what glibc comes to by itself where large blocks are freed
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Let glibc reuse freed blocks of any size in this block; at the end it returns them.

    glibc maps every block over 32 MB anew, so that the kernel clears each page of every large activation: more than
    half of MobileNetV2's forward pass on 32 images, and a quarter of a training step. Other C libraries, and thresholds
    set by the user, are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or any(os.environ.get(name) for name in _OWN_SETTINGS):
        yield
        return
    for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        mallopt(threshold, _KEEP)
    try:
        yield
    finally:
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(threshold, _GIVE_BACK)
        return_memory()


# Backbone features on disk, keyed by file content; one folder a (weights, transform) key, shared by runs.
#
# A folder holds pairs of files: `<name>.npy`, (n, V, F) float32, and `<name>.json`, the n SHA-256 of the images. A
# pair counts once its `.json` stands, which is written last, so a killed writer leaves nothing half-read and several
# writers may share a folder.
Features = npt.NDArray[np.float32]


class FeatureStore:
    """Features of images on disk, by content hash.

    Args:
        folder: of this key; made if missing.
        description: of the features, written beside them.
    """

    def __init__(self, folder: Path, *, description: Mapping[str, Any]) -> None:
        self.folder = folder
        with self._writing("choose another --cache"):
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(folder / "description.txt", json.dumps(description, indent=2).encode())
        self._rows: dict[str, tuple[str, int]] = {}
        self.read_again()

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._rows

    @contextmanager
    def _writing(self, advice: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"the feature cache cannot be written ({error}); {advice}", at=self.folder) from error

    def read_again(self) -> None:
        """Read what other writers have added."""
        known = {name for name, _ in self._rows.values()}
        for listing in sorted(self.folder.glob("*.json")):
            if listing.stem in known or not listing.with_suffix(".npy").exists():
                continue
            try:
                hashes: list[str] = json.loads(listing.read_text(encoding="ascii"))
                self._rows.update({sha256: (listing.stem, row) for row, sha256 in enumerate(hashes)})
            except (ValueError, TypeError) as error:
                problem = f"the feature cache is damaged ({error}); delete this file and run again"
                raise InputError(problem, at=listing) from error

    def add(self, hashes: Sequence[str], features: Features) -> None:
        """Store (n, V, F) features of n images, atomically."""
        name = uuid.uuid4().hex
        with self._writing("free space or choose another --cache"):
            with replacing(self.folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, features, allow_pickle=False)
            write_durably(self.folder / f"{name}.json", json.dumps(list(hashes)).encode())
        self._rows.update({sha256: (name, row) for row, sha256 in enumerate(hashes)})

    def load(self, hashes: Sequence[str]) -> Features:
        """(N, V, F) float32 of stored images, at least one."""
        by_file: dict[str, list[tuple[int, int]]] = {}
        for position, sha256 in enumerate(hashes):
            name, row = self._rows[sha256]
            by_file.setdefault(name, []).append((position, row))
        stored = {name: np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in by_file}
        result = np.empty((len(hashes), *next(iter(stored.values())).shape[1:]), dtype=np.float32)
        for name, pairs in by_file.items():
            positions, rows = zip(*pairs, strict=True)
            result[list(positions)] = stored[name][list(rows)]
        return result


BATCH_IMAGES = 32
SHARD_BATCHES = 32


class Extractor:
    """Frozen backbone on its device, in the fastest precision that the device computes natively.

    Args:
        backbone: in eval mode.
        precision: `auto`, `float32` or `bfloat16`.

    Attributes:
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
        self.precision = str(self.dtype).removeprefix("torch.")

    @cached_property
    def convolutions(self) -> Sequence[Convolution]:
        """Of the backbone, with a faster way."""
        return find_convolutions(self._module, side=self.preprocess.crop, in_bfloat16=self.dtype == torch.bfloat16)

    @torch.inference_mode()
    def extract(self, pixels: Pixels) -> Tensor:
        """(N, H, W, 3) uint8 to (N, F) float32 on the device."""
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        return self.finish(self._module, arrange_images(images, self.mean, self.std))

    @torch.inference_mode()
    def finish(self, run: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """(N, F) float32 on the device, by the module or a part of it with the same end."""
        is_half, convolutions = self.dtype != torch.float32, self.convolutions
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=is_half), standing_in(convolutions):
            return run(inputs.to(self.device)).flatten(1).float()

    def describe(self, *, views: int = 1) -> dict[str, object]:
        """Everything that the features depend on beside the image; view and pooling only if unusual."""
        backbone = self.backbone
        unusual = {
            **({"view": "both", "side": backbone.side} if backbone.view == "both" else {}),
            **({} if backbone.pooling == "own" else {"pooling": f"{backbone.pooling}, {POOLING_VERSION}"}),
        }
        return {
            "backbone": self.backbone.name,
            "weights_sha256": self.backbone.hash_weights(),
            "preprocess": self.preprocess.to_json(),
            "views": views,
            "precision": self.precision,
            **({"convolutions": CONVOLUTIONS_VERSION} if self.device.type == "cpu" else {}),
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


def open_store(cache: Path, extractor: Extractor, *, views: int = 1) -> FeatureStore:
    """Feature store below the cache folder; it does not depend on seed or run. `views` as in `extract_features`."""
    description = extractor.describe(views=views)
    if views > 1:
        description["draw"] = edited_views.__name__
    folder = cache / f"{folder_name(extractor.backbone)}-{name_content(description)}"
    return FeatureStore(folder, description=description)


def name_content(how: Mapping[str, Any], hashes: Iterable[str] = ()) -> str:
    """Name of a cached file: a hash of its parameters, as JSON, and of the hashes of its inputs, in order."""
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode())
    for sha256 in hashes:
        digest.update(sha256.encode())
    return digest.hexdigest()[:16]


def folder_name(backbone: Backbone) -> str:
    """Name of a backbone's files: names of other libraries contain : and /."""
    return re.sub(r"[^\w.-]", "_", backbone.name)


@dataclass(frozen=True, slots=True)
class ExtractedSet:
    """Usable images of a list: `rows` (n,) int64 into it, their hashes, and the skipped images.

    `computed` counts the images that the backbone computed; the others came from the store.
    """

    rows: np.ndarray
    hashes: tuple[str, ...]
    skipped: tuple[tuple[Path, ImageError], ...]
    computed: int


def _read_views(
    path: Path, *, store: FeatureStore, preprocess: PreprocessConfig, views: int
) -> tuple[str, Pixels | None] | ImageError:
    """Hash and views of an image; None for views that the store has."""
    try:
        data = read_bytes(path)
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 in store:
            return sha256, None
        image = decode_image(data, name=str(path), target_side=preprocess.resize)
    except ImageError as error:
        return error.apart()
    return sha256, edited_views(image, preprocess, count=views, sha256=sha256)


@keep_freed_memory()
def extract_features(
    paths: Sequence[Path],
    *,
    store: FeatureStore,
    extractor: Extractor,
    workers: int,
    views: int = 1,
    progress: Progress = no_progress,
) -> ExtractedSet:
    """Extract the features of every usable image into the store: of itself, and of edited copies up to `views`.

    An interruption keeps every finished batch, a kill all but the last shard.
    """
    rows, hashes, skipped = list[int](), list[str](), list[tuple[Path, ImageError]]()
    waiting: dict[str, Pixels] = {}  # views of the next batch
    computed: dict[str, Features] = {}  # (V, F) by hash, of the next shard
    total = 0

    def compute() -> None:
        """Run the backbone on the waiting views.

        The batch is always padded to its full size: kernels differ by batch size in the last bits, and features must
        not depend on the number of new images.
        """
        pixels = np.stack(list(waiting.values()))  # (n, V, H, W, 3)
        count = len(pixels)
        filled = np.concatenate([pixels, np.repeat(pixels[-1:], BATCH_IMAGES - count, axis=0)])
        features = [extractor.extract(filled[:, view])[:count].cpu().numpy() for view in range(views)]
        computed.update(zip(waiting, np.stack(features, axis=1), strict=True))
        waiting.clear()

    def save() -> None:
        if computed:
            store.add(list(computed), np.stack(list(computed.values())))
            computed.clear()

    read = partial(_read_views, store=store, preprocess=extractor.preprocess, views=views)
    try:
        for row, result in enumerate(map_ahead(read, paths, workers=workers, ahead=3 * BATCH_IMAGES)):
            if isinstance(result, ImageError):
                skipped.append((paths[row], result))
            else:
                sha256, drawn = result
                rows.append(row)
                hashes.append(sha256)
                if drawn is not None and sha256 not in waiting and sha256 not in computed and sha256 not in store:
                    waiting[sha256] = drawn
                    total += 1
                if len(waiting) == BATCH_IMAGES:
                    compute()
                if len(computed) == SHARD_BATCHES * BATCH_IMAGES:
                    save()
            progress(row + 1, len(paths))
        if waiting:
            compute()
    finally:
        save()
    return ExtractedSet(np.array(rows, dtype=np.int64), tuple(hashes), tuple(skipped), total)
