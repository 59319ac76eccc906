"""What our decoding costs in Recall@1: the same photos decoded in full and resized once, and decoded as we do.

Photos as they are, and enlarged with a camera's noise to a shorter side of `ENLARGED_SIDE`, so that they are decoded at
a half or a quarter of their size. That side is no multiple of the scales: the last row and column of what is decoded
then cover less than a whole pixel, which the resize does not know.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.indexing.index_decoding import decode_in_full, decode_ours
from benchmarks.indexing.index_images import LARGE_QUALITY, take_evenly
from benchmarks.noise.splits import SplitRecords, list_split
from index.arrays import Labels, Vectors
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import Scores, score_retrieval
from index.images.preprocess import Pixels
from index.model.embedder import Embedder
from index.threads import map_ahead, usable_cores

SPLITS = ("clothing-seen", "groceries-seen")
ENLARGED_SIDE = 1031
NOISE = 6.0  # standard deviation of brightness in 0..255
_BATCH = 16


def compare_decoding(
    models: dict[str, Path], *, work: Path, limit: int, seed: int, measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """For every dataset, size and model: how far the inputs differ, Recall@1 of both ways, and the difference."""
    opened = {name: Embedder(path) for name, path in models.items()}
    rows = []
    for name in SPLITS:
        split = list_split(name, work=work)
        for size, change in (("as they are", None), ("enlarged", partial(_enlarge, seed=seed))):
            make = partial(_compare, split, opened, change=change, limit=limit, seed=seed)
            found = measure(f"quality-{name}-{size.replace(' ', '-')}", make)
            rows += [{"dataset": name, "photos": size, "model": model, **row} for model, row in found.items()]
    return {"rows": rows}


def _compare(
    split: SplitRecords,
    models: Mapping[str, Embedder],
    *,
    change: Callable[..., bytes] | None,
    limit: int,
    seed: int,
) -> dict[str, Any]:
    """By model: how far its inputs of the same photos differ, and what that does to Recall@1."""
    chosen = take_evenly(range(len(split.test)), limit)
    records = [split.test[number] for number in chosen]
    labels = np.unique([record.label for record in records], return_inverse=True)[1].astype(np.int64)
    searched = None if split.is_gallery is None else np.array(split.is_gallery)[chosen]
    inputs = {name: _Inputs(model, len(records)) for name, model in models.items()}

    def read(number: int) -> None:
        path = records[number].path
        data = path.read_bytes() if change is None else change(path, number=number)
        for each in inputs.values():
            each.read(data, number)

    for _ in map_ahead(read, range(len(records)), workers=usable_cores(), ahead=16):
        pass
    return {name: each.score(labels, searched, seed=seed) for name, each in inputs.items()}


class _Inputs:
    """The inputs of one model, of every photo as the reference and as we decode it."""

    def __init__(self, model: Embedder, count: int) -> None:
        self._model, side = model, model.contract.preprocess.crop
        self._full, self._ours = (np.empty((count, side, side, 3), dtype=np.uint8) for _ in range(2))
        self._apart, self._most = np.empty(count), np.empty(count, dtype=np.int64)

    def read(self, data: bytes, number: int) -> None:
        """Decode a photo both ways."""
        config = self._model.contract.preprocess
        full, ours = decode_in_full(data, config), decode_ours(data, config)
        apart = np.abs(full.astype(np.int16) - ours)
        self._full[number], self._ours[number] = full, ours
        self._apart[number], self._most[number] = apart.mean(), apart.max()

    def score(self, labels: Labels, in_gallery: np.ndarray | None, *, seed: int) -> dict[str, Any]:
        """The inputs' differences, Recall@1 by the reference, and by how much ours is above it."""
        hits = _score(_embed(self._model, self._full), labels, in_gallery)
        own = _score(_embed(self._model, self._ours), labels, in_gallery) if self._most.any() else hits
        difference = paired_bootstrap(own, hits, seed=seed)
        return {
            "images": len(labels), "queries": len(hits), "identical": float((self._most == 0).mean()),
            "mean_apart": float(self._apart.mean()), "most_apart": int(self._most.max()),
            "recall": 100 * float(hits.mean()), "changed": int((own != hits).sum()),
            "difference": {name: 100 * getattr(difference, name) for name in ("mean", "low", "high")},
        }  # fmt: skip


def _enlarge(path: Path, *, number: int, seed: int) -> bytes:
    """A photo as a camera of more pixels might have taken it, as JPEG; it depends on the seed and its number."""
    with Image.open(path) as photo:
        scale = ENLARGED_SIDE / min(photo.size)
        size = round(photo.width * scale), round(photo.height * scale)
        large = np.asarray(photo.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    generator = np.random.default_rng([seed, number])
    large = large + np.float32(NOISE) * generator.standard_normal((*large.shape[:2], 1), dtype=np.float32)
    file = io.BytesIO()
    Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=LARGE_QUALITY)
    return file.getvalue()


def _embed(model: Embedder, pixels: Pixels) -> Vectors:
    batches: Sequence[Pixels] = [pixels[start : start + _BATCH] for start in range(0, len(pixels), _BATCH)]
    return np.concatenate([model.embed_batch(batch) for batch in batches])


def _score(vectors: Vectors, labels: Labels, in_gallery: np.ndarray | None) -> Scores:
    """Whether the nearest other photo has the label: of each photo, or of each that searches those of a gallery."""
    ids = np.arange(len(vectors))
    if in_gallery is None:
        scores = score_retrieval(
            vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=(1,)
        )
    else:
        scores = score_retrieval(
            vectors[~in_gallery], labels[~in_gallery], gallery=vectors[in_gallery],
            gallery_labels=labels[in_gallery], gallery_ids=ids[in_gallery], ks=(1,),
        )  # fmt: skip
    return scores.hits[1]
