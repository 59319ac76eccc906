"""Vectors of real photos: random crops of them through a frozen backbone, then PCA."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from benchmarks.common.record import digest, find_photos, find_weights, save_array, unpack_tiny_imagenet
from benchmarks.indexing.images import take_batches
from index.images.image_files import decode_image
from index.images.preprocess import PreprocessConfig
from index.threads import map_ahead, usable_cores
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor

QUERY_IMAGES = 2000
_SIDE = 96  # pixels of a crop as the backbone sees it
_CROP_SHARE = (0.2, 1.0)
_FIT_IMAGES = 20_000
_BATCH = 64  # crops, at least, for the backbone
_CROPS_AHEAD = 1024  # decoded and waiting: 28 MB
_ROWS_AT_ONCE = 65_536
_TOLD_EVERY = 1000  # photos
_PREPROCESS = PreprocessConfig(resize=_SIDE, crop=_SIDE)

Vectors = npt.NDArray[np.float32]


def load_vectors(folder: Path, *, count: int, width: int, seed: int = 0) -> tuple[Vectors, Vectors]:
    """(N, D) crops of all photos but 2,000, and (Q, D) of those, one crop each, which ask; float32 unit rows.

    They are made once and kept in the folder.

    Args:
        folder: of what is kept; made where it is missing.
        count: N; a million takes 25 crops of each photo.
        width: D, at most 512. What was made wider serves narrower, so ask for the widest first.
        seed: of crops and of the choice of photos that ask.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = _list_images(folder)
    views = -(-count // (len(images) - QUERY_IMAGES))
    order = np.random.default_rng(seed).permutation(len(images))
    table = _open_coefficients(folder, [images[i] for i in order], views=views, width=width, seed=seed)
    queries = np.array(table[:QUERY_IMAGES, 0, :width], dtype=np.float32)
    crops = table[QUERY_IMAGES:].reshape(-1, table.shape[2])  # still mapped
    chosen = np.random.default_rng(seed + 1).permutation(len(crops))[:count]  # ids say nothing of the photo
    base = np.empty((count, width), dtype=np.float32)
    for start in range(0, count, _ROWS_AT_ONCE):
        base[start : start + _ROWS_AT_ONCE] = crops[chosen[start : start + _ROWS_AT_ONCE], :width]
    for rows in (base, queries):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return base, queries


def _list_images(folder: Path) -> list[Path]:
    roots = [*unpack_tiny_imagenet(folder / "images"), find_photos()]
    return [path for root in roots for path in sorted(root.rglob("*.*")) if path.is_file()]


def _open_coefficients(
    folder: Path, images: Sequence[Path], *, views: int, width: int, seed: int
) -> npt.NDArray[np.float16]:
    """(images, views, at least `width`) PCA coefficients of every crop, mapped."""
    stem = f"coefficients-{views}-{digest([len(images), views, seed, _SIDE, _CROP_SHARE])}"
    made = {int(path.stem.rpartition("-")[2]): path for path in folder.glob(f"{stem}-*.npy")}
    path = made.get(min((each for each in made if each >= width), default=0), folder / f"{stem}-{width}.npy")
    if not path.exists():
        backbone = load_backbone("mobilenet_v2", str(find_weights()))
        extractor = Extractor(backbone, _PREPROCESS, device=torch.device("cpu"))
        mean, axes = _fit_axes(images[:_FIT_IMAGES], extractor, width=width, seed=seed)
        table = np.empty((len(images), views, width), dtype=np.float16)
        done = 0
        for features in _extract(images, extractor, views=views, seed=seed):
            table[done : done + len(features)] = (features - mean) @ axes
            done += len(features)
            if done // _TOLD_EVERY > (done - len(features)) // _TOLD_EVERY:
                print(f"{views} crops each of {done:,} of {len(images):,} photos", file=sys.stderr, flush=True)
        save_array(path, table)
    coefficients: npt.NDArray[np.float16] = np.load(path, mmap_mode="r")
    return coefficients


def _fit_axes(images: Sequence[Path], extractor: Extractor, *, width: int, seed: int) -> tuple[Vectors, Vectors]:
    """The mean (F,) and the first principal axes (F, width) of one crop of each image."""
    features = np.concatenate([part[:, 0] for part in _extract(images, extractor, views=1, seed=seed)])
    mean = features.mean(axis=0)
    centred = (features - mean).astype(np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return mean, axes[:, ::-1][:, :width].astype(np.float32)


def _extract(images: Sequence[Path], extractor: Extractor, *, views: int, seed: int) -> Iterator[Vectors]:
    """(n, views, F) features of the images, a few images at a time."""

    def crop(position: int) -> npt.NDArray[np.uint8]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + position)
        image = decode_image(images[position].read_bytes(), name=str(images[position]), target_side=2 * _SIDE)
        pixels = functional.pil_to_tensor(image)
        return torch.stack([_crop(pixels, generator) for _ in range(views)]).permute(0, 2, 3, 1).numpy()

    cropped = map_ahead(crop, range(len(images)), workers=usable_cores(), ahead=max(2, _CROPS_AHEAD // views))
    for batch in take_batches(cropped, -(-_BATCH // views)):
        yield extractor.extract(np.concatenate(batch)).numpy().reshape(len(batch), views, -1)


def _crop(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One random crop of a (3, H, W) image, mirrored half of the time, as (3, 96, 96)."""
    height, width = pixels.shape[1:]
    share, ratio, across, down, mirror = torch.rand(5, generator=generator).tolist()
    area = height * width * (_CROP_SHARE[0] + share * (_CROP_SHARE[1] - _CROP_SHARE[0]))
    aspect = (3 / 4) * (16 / 9) ** ratio
    high, wide = min(height, round((area / aspect) ** 0.5)), min(width, round((area * aspect) ** 0.5))
    top, left = round(across * (height - high)), round(down * (width - wide))
    crop = functional.resized_crop(
        pixels, top, left, high, wide, [_SIDE, _SIDE], interpolation=v2.InterpolationMode.BILINEAR
    )
    return functional.horizontal_flip(crop) if mirror < 0.5 else crop
