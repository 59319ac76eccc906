"""What our decoding costs in Recall@1: the same photos decoded in full and resized once, and decoded as we do.

Photos as they are, and enlarged with a camera's noise to a shorter side of `ENLARGED_SIDE`, so that they are decoded at
a half or a quarter of their size. That side is no multiple of the scales: the last row and column of what is decoded
then cover less than a whole pixel, which the resize does not know.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
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
    rows = []
    for name in SPLITS:
        split = list_split(name, work=work)
        for size, change in (("as they are", None), ("enlarged", partial(_enlarge, seed=seed))):
            for model, path in models.items():
                make = partial(_compare, split, Embedder(path), change=change, limit=limit, seed=seed)
                row = measure(f"quality-{name}-{size}-{model}", make)
                rows.append({"dataset": name, "photos": size, "model": model, **row})
    return {"rows": rows}


def _compare(
    split: SplitRecords, model: Embedder, *, change: Callable[..., bytes] | None, limit: int, seed: int
) -> dict[str, Any]:
    chosen = take_evenly(range(len(split.test)), limit)
    records = [split.test[number] for number in chosen]
    in_gallery = np.array([split.is_gallery is None or split.is_gallery[number] for number in chosen])
    labels = np.unique([record.label for record in records], return_inverse=True)[1].astype(np.int64)
    config = model.contract.preprocess
    full, ours = (np.empty((len(records), config.crop, config.crop, 3), dtype=np.uint8) for _ in range(2))

    def read(number: int) -> tuple[float, int]:
        path = records[number].path
        data = path.read_bytes() if change is None else change(path, number=number)
        full[number], ours[number] = decode_in_full(data, config), decode_ours(data, config)
        apart = np.abs(full[number].astype(np.int16) - ours[number])
        return float(apart.mean()), int(apart.max())

    found = list(map_ahead(read, range(len(records)), workers=usable_cores(), ahead=16))
    means, most = (np.array(each) for each in zip(*found, strict=True))
    searched = None if split.is_gallery is None else in_gallery
    hits = _score(_embed(model, full), labels, searched)
    own_hits = hits if np.array_equal(full, ours) else _score(_embed(model, ours), labels, searched)
    difference = paired_bootstrap(own_hits, hits, seed=seed)
    return {
        "images": len(records), "queries": len(hits), "identical": float((most == 0).mean()),
        "mean_apart": float(means.mean()), "most_apart": int(most.max()), "recall": 100 * float(hits.mean()),
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
