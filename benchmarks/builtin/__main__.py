"""The built-in model measured on photos that did not make it, beside other models, MobileNetV2 and perceptual hashes.

Semantic search on unseen classes (Recall@1), copies found among other photos, pairs that are called copies, and the
cost of an image, of the searched halves of the datasets of RETRIEVAL_SHARED.

    python -m benchmarks.builtin --out bench/builtin
    python -m benchmarks.builtin --out bench/builtin --model old.onnx --queries 200 --photos 2000
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance

from benchmarks.common.graph_features import GraphExtractor
from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.noise.splits import list_split
from index.arrays import Floats, normalise_rows
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from index.model.builtin import find_builtin
from index.model.embedder import Embedder
from index.outputs import COPY, SEMANTIC
from index.threads import map_ahead, usable_cores
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.data.datasets import Dataset, Record
from training.data.transforms import Edit, mirror
from training.run.searches import ValidationSet

SEARCHED = ("cars", "groceries-disjoint", "clothing-disjoint", "tiny-imagenet")
_BATCH, _TIMED, _READ_SIDE = 16, 400, 512  # images; pixels, above which files are read at less than their size
_RIVAL = "MobileNetV2, 1280-d"
_PHASH, _PHASH_BITS = "pHash", 8  # of 64 in which copies may differ


def cut_to(area: float) -> Edit:
    """A window of this share of the area, anywhere."""

    def cut(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width, height = (round(side * area**0.5) for side in image.size)
        left, top = (int(generator.integers(room + 1)) for room in (image.width - width, image.height - height))
        return image.crop((left, top, left + width, top + height))

    return cut


def recolour(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Brighter, flatter and more colourful."""
    for enhance, factor in ((ImageEnhance.Brightness, 1.3), (ImageEnhance.Contrast, 0.75), (ImageEnhance.Color, 1.5)):
        image = enhance(image).enhance(factor)
    return image


def compress(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """A JPEG of quality 20."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=20)
    return Image.open(file).convert("RGB")


def turn(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """By 15 degrees either way, on white."""
    angle = 15 if generator.random() < 0.5 else -15
    return image.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor=(255, 255, 255))


def caption(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """A white bar below it with words."""
    bar = max(12, image.height // 6)
    page = Image.new("RGB", (image.width, image.height + bar), (255, 255, 255))
    page.paste(image)
    ImageDraw.Draw(page).text((4, image.height + 2), "seen on a screen, today", fill=(0, 0, 0))
    return page


EDITS: Mapping[str, Edit] = {
    "cut to 70 %": cut_to(0.7),
    "mirrored": mirror,
    "recoloured": recolour,
    "JPEG 20": compress,
    "turned by 15°": turn,
    "cut to 50 %": cut_to(0.5),
    "with a caption": caption,
    "cut to 80 %": cut_to(0.8),
}
PAIR_EDITS = ("cut to 80 %", "mirrored", "JPEG 20")
Vectors = dict[str, Floats]
"""(N, D) unit rows by the name of what made them; hashes are rows of 64 signs, scaled."""


def find_hashes() -> dict[str, Callable[[Image.Image], Any]]:
    """Those of imagehash, where it is installed."""
    try:
        import imagehash
    except ImportError:
        print("imagehash is not installed, and left out; pip install '.[benchmarks]'", file=sys.stderr)
        return {}
    return {_PHASH: imagehash.phash, "dHash": imagehash.dhash, "wHash": imagehash.whash}


class Reader:
    """Makes the vectors of images by every model, MobileNetV2 and every hash."""

    def __init__(self, models: Mapping[str, Path], *, weights: Path | str, cache: Path) -> None:
        self.hashes = find_hashes()
        self.models = {name: Embedder(path).with_outputs(SEMANTIC, COPY) for name, path in models.items()}
        backbone = load_backbone("mobilenet_v2", str(weights))
        rival = Extractor(
            backbone, PreprocessConfig(resize=224, crop=224), device=torch.device("cpu"), precision="float32"
        )
        self._rival = GraphExtractor(rival, "onnxruntime", cache=cache)

    def read(self, records: Sequence[Record], edit: Edit | None = None, *, hashes: bool = True) -> Vectors:
        """Of image files, edited where that is wanted; the edit has a generator of the image's place."""
        sizes = [*(one.contract.preprocess for one in self.models.values()), self._rival.preprocess]

        def see(numbered: tuple[int, Record]) -> tuple[list[np.ndarray], list[np.ndarray]]:
            number, record = numbered
            image = read_image(record.path, target_side=_READ_SIDE)
            image = image if edit is None else edit(image, np.random.default_rng(number))
            signs = [make(image).hash.ravel() for make in self.hashes.values()] if hashes else []
            return [preprocess_image(image, size) for size in sizes], signs

        found: dict[str, list[np.ndarray]] = {}
        seen = list[tuple[list[np.ndarray], list[np.ndarray]]]()
        for number, one in enumerate(map_ahead(see, list(enumerate(records)), workers=usable_cores(), ahead=32), 1):
            seen.append(one)
            if len(seen) == _BATCH or number == len(records):
                for name, rows in self._embed(seen).items():
                    found.setdefault(name, []).append(rows)
                seen = []
        return {name: np.concatenate(rows) for name, rows in found.items()}

    def _embed(self, seen: Sequence[tuple[list[np.ndarray], list[np.ndarray]]]) -> Vectors:
        *pixels, rival = (np.stack(side) for side in zip(*(views for views, _ in seen), strict=True))
        found: Vectors = {}
        for (name, model), images in zip(self.models.items(), pixels, strict=True):
            semantic, copy = np.split(model.embed_batch(images), [model.contract.embedding_dim], axis=1)
            found |= {f"{name}, semantic": semantic, f"{name}, copy": copy}
        found[_RIVAL] = normalise_rows(np.asarray(self._rival.extract(rival), dtype=np.float32))
        for name, bits in zip(self.hashes, zip(*(signs for _, signs in seen), strict=True), strict=False):
            found[name] = (2 * np.stack(bits).astype(np.float32) - 1) / 8
        return found


def _some(test: Dataset, limit: int | None) -> Dataset:
    """At most so many images, evenly taken."""
    step = 1 if limit is None else -(-len(test.records) // limit)
    gallery = None if test.is_gallery is None else test.is_gallery[::step]
    return replace(test, records=test.records[::step], is_gallery=gallery)


def recall_at_1(vectors: Floats, test: Dataset) -> float:
    """Share of queries whose nearest other image, of the gallery if there is one, has their label."""
    labels = np.unique([record.label for record in test.records], return_inverse=True)[1].astype(np.int64)
    gallery = None if test.is_gallery is None else np.array(test.is_gallery)
    return ValidationSet(vectors, labels, gallery, (1,)).score(vectors).recall[1]


def find_first(similar: Floats) -> float:
    """Share of (n, m) rows whose own column is the best; of k equal ones it is with a chance of 1 / k."""
    own, best = np.diagonal(similar), similar.max(axis=1)
    return float(((own >= best) / (similar >= best[:, None]).sum(axis=1)).mean())


def call_pairs(read: Callable[..., Vectors], records: Sequence[Record], limits: Mapping[str, float]) -> dict[str, Any]:
    """By rule: share of edited photos that it calls copies of theirs, and wrong pairs: different photos called so."""
    originals = read(records)
    found: dict[str, Any] = {name: {} for name in limits}
    for edit in PAIR_EDITS:
        edited = read(records, EDITS[edit])
        for name, limit in limits.items():
            found[name][edit] = float(((edited[name] * originals[name]).sum(axis=1) >= limit).mean())
    for name, limit in limits.items():
        wrong = int(np.triu(originals[name] @ originals[name].T >= limit, k=1).sum())
        right = found[name][PAIR_EDITS[0]] * len(records)
        found[name] |= {"wrong pairs": wrong, "precision": right / max(right + wrong, 1)}
    return found


def time_image(model: Embedder, records: Sequence[Record]) -> float:
    """Median seconds an image, decoded and embedded by the batch, on all cores."""

    def read(record: Record) -> np.ndarray:
        return model.preprocess(record.path.read_bytes(), name=str(record.path))

    seconds = []
    for start in range(0, len(records), _BATCH):
        begun, some = time.perf_counter(), records[start : start + _BATCH]
        pixels = map_ahead(read, some, workers=usable_cores(), ahead=64)
        model.embed_batch(np.stack(list(pixels)))
        seconds.append((time.perf_counter() - begun) / len(some))
    return float(np.median(seconds))


@ending_in_words("builtin")
def main(arguments: list[str] | None = None) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the record")
    add("--model", type=Path, action="append", default=[], help="another model with both outputs; may be repeated")
    add("--weights", help="of MobileNetV2 (default: those of RETRIEVAL_SHARED)")
    add("--cache", type=Path, help="folder of unpacked images (default OUT/cache)")
    add("--queries", type=int, default=1000, help="photos that are edited")
    add("--photos", type=int, default=14_000, help="others among which they are looked for, as far as there are")
    add("--limit", type=int, help="photos of each dataset (default: all)")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine([options.seed])
    cache = options.cache or options.out / "cache"
    splits = {name: _some(list_split(name, work=cache)[1], options.limit) for name in SEARCHED}
    models = {"built-in": find_builtin(), **{path.stem: path for path in options.model}}
    reader = Reader(models, weights=find_weights(options.weights), cache=cache)
    seconds = {
        name: time_image(model, splits["clothing-disjoint"].records[:_TIMED]) for name, model in reader.models.items()
    }
    vectors = {name: reader.read(split.records, hashes=False) for name, split in splits.items()}
    recalls = {
        name: {kind: recall_at_1(rows, splits[name]) for kind, rows in found.items() if "copy" not in kind}
        for name, found in vectors.items()
    }

    photos = [record for name in SEARCHED[:3] for record in splits[name].records]  # of people, of 100 pixels and more
    order = np.random.default_rng(options.seed).permutation(len(photos)).tolist()
    asking = [photos[row] for row in order[: options.queries]]
    others = [photos[row] for row in order[options.queries :]] + list(splits[SEARCHED[3]].records)
    gallery = reader.read([*asking, *others[: options.photos]])
    first: dict[str, dict[str, float]] = {}
    for edit, change in EDITS.items():
        edited = reader.read(asking, change)
        first[edit] = {name: find_first(rows @ gallery[name].T) for name, rows in edited.items()}

    limits = {f"{name}, copy": model.contract.copy_threshold for name, model in reader.models.items()}
    if _PHASH in reader.hashes:
        limits[_PHASH] = 1 - 2 * _PHASH_BITS / 64
    pairs = {name: call_pairs(reader.read, splits[name].records, limits) for name in SEARCHED[1:3]}
    results = {"seconds": seconds, "recall": recalls, "found first": first, "pairs": pairs}
    results["bytes"] = {name: path.stat().st_size for name, path in models.items()}
    text = _report(results, limits, searched=len(gallery[_RIVAL]), splits=splits)
    print(text)
    write_record(options.out / "builtin.json", settings=vars(options), results=results, text=text)


def _report(
    results: Mapping[str, Any], limits: Mapping[str, float], *, searched: int, splits: Mapping[str, Dataset]
) -> str:
    def percent(rows: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
        return [[name, *(f"{100 * value:.1f}" for value in row.values())] for name, row in rows.items()]

    def heads(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
        return list(next(iter(rows.values())))

    recall, first = results["recall"], results["found first"]
    parts = [
        *(
            f"{name}: {1000 * seconds:.1f} ms an image, decoded and embedded, {results['bytes'][name] / 1e6:.1f} MB"
            for name, seconds in results["seconds"].items()
        ),
        "",
        "Recall@1 in %",
        format_table(["searched", *heads(recall)], percent(recall)),
        "",
        f"Original found first among {searched:,}, in %",
        format_table(["edited", *heads(first)], percent(first)),
    ]
    for name, rules in results["pairs"].items():
        rows = []
        for rule, found in rules.items():
            shares = [f"{100 * found[edit]:.1f}" for edit in PAIR_EDITS]
            wrong, precision = str(found["wrong pairs"]), f"{found['precision']:.4f}"
            rows.append([f"{rule}, from {limits[rule]:.2f}", *shares, wrong, precision])
        title = f"Called copies, {name}, {len(splits[name].records):,} photos: % of edited ones, wrong pairs, precision"
        parts += ["", title, format_table(["rule", *PAIR_EDITS, "wrong pairs", "precision"], rows)]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
