"""Models without labels and without training: raw backbone features, or their PCA whitening on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from torch import nn

from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.progress import Progress, no_progress
from index.sources.folder_walk import walk_folder
from index.text import printable_path
from training.backbone.backbones import Backbone
from training.backbone.extract import Extractor, extract_features, open_store
from training.head.embedding_heads import RawHead
from training.head.projection import count_directions
from training.head.untrained import fit_untrained
from training.options.config import USUAL_DIM
from training.run.run_folder import PARITY_IMAGES


@dataclass(frozen=True, slots=True)
class UntrainedModel:
    """A head over a backbone, its width, its method name, and images to check the export on (N, crop, crop, 3)."""

    head: nn.Module
    embedding_dim: int
    method: str
    check_images: Pixels


def make_raw(backbone: Backbone, preprocess: PreprocessConfig) -> UntrainedModel:
    """The L2-normalised features themselves. The export is checked on fixed synthetic images: there is no folder."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, size=(PARITY_IMAGES, 8, 8, 3), dtype=np.uint8)
    repeat = -(-preprocess.crop // 8)
    images = coarse.repeat(repeat, axis=1).repeat(repeat, axis=2)[:, : preprocess.crop, : preprocess.crop]
    return UntrainedModel(RawHead(backbone.feature_dim), backbone.feature_dim, "raw", np.ascontiguousarray(images))


def make_whitened(
    extractor: Extractor,
    folder: Path,
    *,
    embedding_dim: int | None,
    cache: Path,
    workers: int,
    progress: Progress = no_progress,
) -> UntrainedModel:
    """PCA-whitened features, fitted on all usable images of a folder; labels are not needed and not looked at.

    Raises:
        InputError: no usable image, or a width that the images cannot span.
    """
    paths = [folder / found.path for found in walk_folder(folder) if found.problem is None]
    store = open_store(cache, extractor, views=1)
    extracted = extract_features(
        paths, store=store, extractor=extractor, views=1, workers=workers, progress=progress
    )
    if not extracted.hashes:
        raise InputError(f"{printable_path(str(folder))}: none of the {len(paths)} files is a readable image")
    features = store.load(extracted.hashes)[:, 0]
    if embedding_dim is None:
        embedding_dim = min(USUAL_DIM, count_directions(features))
    head = fit_untrained("pca-whitened", features, embedding_dim=embedding_dim)
    images = check_images([paths[row] for row in extracted.rows], extractor.preprocess)
    return UntrainedModel(head, embedding_dim, "pca-whitened", images)


def check_images(paths: list[Path], preprocess: PreprocessConfig) -> Pixels:
    """Model inputs (N, crop, crop, 3) of the first readable images of a list, at most `PARITY_IMAGES`.

    Raises:
        InputError: none is readable.
    """
    images = list(islice(_readable(paths, preprocess), PARITY_IMAGES))
    if not images:
        raise InputError(
            f"none of {len(paths)} check images is readable; an export is verified on the run's parity/*.png, "
            "or on the images of --whiten: put them back, or train again"
        )
    return np.stack(images)


def _readable(paths: list[Path], preprocess: PreprocessConfig) -> Iterator[Pixels]:
    for path in paths:
        try:
            image = read_image(path, target_side=preprocess.resize).image
        except ImageError:
            continue
        yield preprocess_image(image, preprocess)
