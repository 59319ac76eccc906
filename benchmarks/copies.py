"""Which pictures are copies of one another: what finds the original of an edited photo, and at which wrong pairs.

Photos that the model did not learn from (the searched halves of `benchmarks.model_in_the_box`, and cars): some ask,
each edited in ways that are fixed here, and are to find their own original among themselves and many others. Beside the
model's `picture` output: its `kind` output, the frozen teacher's features, perceptual hashes of the imagehash library,
and the rule for near-duplicates of galleries without such an output. Then which share of edited photos each rule calls
copies, and how many pairs of different photos.

    python -m benchmarks.copies --out bench/copies --model bench/box/box.onnx
    python -m benchmarks.copies --out bench/copies --model model.onnx --queries 200 --photos 2000
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.model_in_the_box import SEARCHED
from benchmarks.noise.splits import list_split
from index.arrays import Floats, Ids
from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.images.image_files import read_image
from index.images.perceptual_hash import hamming_distances, perceptual_hash
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.embedder import Embedder
from index.outputs import KIND, PICTURE
from index.threads import map_ahead, usable_cores
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.data.copies import Edit, mirror
from training.data.datasets import Record

MakeHash = Callable[[Image.Image], np.ndarray]
"""(64,) bool of an image."""
_AT_ONCE, _READ_SIDE = 32, 512  # images; pixels, above which files are read at less than their size
_RAW, _PHASH = "MobileNetV2, 1280-d", "pHash"


def cut_to(area: float) -> Edit:
    """A window of this share of the area, anywhere."""

    def cut(image: Image.Image, generator: np.random.Generator) -> Image.Image:
        width, height = (round(side * area**0.5) for side in image.size)
        left, top = (int(generator.integers(room + 1)) for room in (image.width - width, image.height - height))
        return image.crop((left, top, left + width, top + height))

    return cut


def recolour(image: Image.Image, _: np.random.Generator) -> Image.Image:
    """Brighter, flatter and more colourful."""
    for enhance, factor in (
        (ImageEnhance.Brightness, 1.3),
        (ImageEnhance.Contrast, 0.75),
        (ImageEnhance.Color, 1.5),
    ):
        image = enhance(image).enhance(factor)
    return image


def save_badly(image: Image.Image, _: np.random.Generator) -> Image.Image:
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
    "cut to 70 %": cut_to(0.7), "mirrored": mirror, "recoloured": recolour, "JPEG 20": save_badly,
    "turned by 15°": turn,
}  # fmt: skip
"""What the goals name."""
MORE_EDITS: Mapping[str, Edit] = {"cut to 50 %": cut_to(0.5), "with a caption": caption}
PAIR_EDITS: Mapping[str, Edit] = {"cut to 80 %": cut_to(0.8), "mirrored": mirror, "JPEG 20": save_badly}


@dataclass(frozen=True, slots=True)
class Prints:
    """What is known of N images: unit rows by name, hashes by name as (N, 64) bool, and our own as (N,) int64."""

    vectors: Mapping[str, Floats]
    hashes: Mapping[str, np.ndarray]
    own_hash: Ids

    def first(self, count: int) -> Prints:
        """Of the first images alone."""
        vectors, hashes = (
            {name: rows[:count] for name, rows in kind.items()} for kind in (self.vectors, self.hashes)
        )
        return Prints(vectors, hashes, self.own_hash[:count])


class Reader:
    """Takes the prints of images.

    Args:
        model: of two outputs.
        teacher: frozen features.
        hashes: perceptual ones, by name.
    """

    def __init__(self, model: Embedder, teacher: Extractor, hashes: Mapping[str, MakeHash]) -> None:
        self._model, self._teacher, self._hashes = model.giving(KIND, PICTURE), teacher, hashes

    def read(self, records: Sequence[Record], edit: Edit | None = None) -> Prints:
        """Of images from files, edited where that is wanted; each with a generator of its place."""
        own, usual = self._model.contract.preprocess, self._teacher.preprocess

        def see(numbered: tuple[int, Record]) -> tuple[Pixels, Pixels, int, dict[str, np.ndarray]]:
            number, record = numbered
            image = read_image(record.path, target_side=_READ_SIDE).image
            if edit is not None:
                image = edit(image, np.random.default_rng(number))
            pixels = preprocess_image(image, own)
            hashes = {name: make(image) for name, make in self._hashes.items()}
            return pixels, preprocess_image(image, usual), perceptual_hash(pixels), hashes

        rows: list[np.ndarray] = []
        raw: list[np.ndarray] = []
        hashes: list[tuple[int, dict[str, np.ndarray]]] = []
        pending: list[tuple[Pixels, Pixels]] = []
        seen = map_ahead(see, list(enumerate(records)), workers=usable_cores(), ahead=2 * _AT_ONCE)
        for number, (small, large, own_hash, others) in enumerate(seen, start=1):
            pending.append((small, large))
            hashes.append((own_hash, others))
            if len(pending) == _AT_ONCE or number == len(records):
                rows.append(self._model.embed_batch(np.stack([one for one, _ in pending])))
                found = self._teacher.extract(np.stack([one for _, one in pending])).numpy()
                raw.append(found / np.linalg.norm(found, axis=1, keepdims=True))
                pending = []
        kind, picture = np.split(np.concatenate(rows), [self._model.contract.embedding_dim], axis=1)
        return Prints(
            {PICTURE: picture, KIND: kind, _RAW: np.concatenate(raw)},
            {name: np.stack([one[name] for _, one in hashes]) for name in self._hashes},
            np.array([one for one, _ in hashes], dtype=np.int64),
        )


def find_hashes() -> dict[str, MakeHash]:
    """Those of imagehash, where it is installed."""
    try:
        import imagehash
    except ImportError:
        print("imagehash is not installed, and left out; pip install '.[benchmarks]'", file=sys.stderr)
        return {}

    def take(make: Callable[[Image.Image], Any]) -> MakeHash:
        return lambda image: make(image).hash.ravel()

    return {_PHASH: take(imagehash.phash), "dHash": take(imagehash.dhash), "wHash": take(imagehash.whash)}


def find_first(similarities: Floats) -> float:
    """The share of rows of which the same column is the best; of m equals it is so with a chance of 1 / m."""
    best = similarities.max(axis=1)
    is_best = similarities[np.arange(len(similarities)), np.arange(len(similarities))] >= best
    return float((is_best / (similarities >= best[:, None]).sum(axis=1)).mean())


def compare(asking: Prints, gallery: Prints) -> dict[str, float]:
    """How often the original is first, by what is compared."""
    found = {name: find_first(rows @ gallery.vectors[name].T) for name, rows in asking.vectors.items()}
    for name, bits in asking.hashes.items():
        signs, others = (2 * side.astype(np.float32) - 1 for side in (bits, gallery.hashes[name]))
        found[name] = find_first(signs @ others.T)
    return found


def list_rules(threshold: float, hashes: Collection[str]) -> dict[str, Callable[[Prints, Prints], np.ndarray]]:
    """By name, which of the (n, m) pairs of two sides a rule calls copies."""
    similarity, distance = DuplicateConfig().settle(None).limits

    def by_picture(one: Prints, other: Prints) -> np.ndarray:
        return one.vectors[PICTURE] @ other.vectors[PICTURE].T >= threshold

    def by_hash_and(one: Prints, other: Prints) -> np.ndarray:
        near = hamming_distances(one.own_hash[:, None], other.own_hash[None]) <= distance
        return near & (one.vectors[_RAW] @ other.vectors[_RAW].T >= similarity)

    def by_library(one: Prints, other: Prints) -> np.ndarray:
        signs, others = (2 * side.hashes[_PHASH].astype(np.float32) - 1 for side in (one, other))
        return signs @ others.T >= 64 - 2 * 8

    rules = {f"picture, {threshold:.2f}": by_picture, "today's rule, raw features": by_hash_and}
    return {**rules, "imagehash's pHash within 8 bits": by_library} if _PHASH in hashes else rules


def count_pairs(
    prints: Prints, rule: Callable[[Prints, Prints], np.ndarray], labels: np.ndarray
) -> dict[str, int]:
    """Pairs of different photos that a rule calls copies, and those of them within a class."""
    found = np.triu(rule(prints, prints), k=1)
    return {"pairs": int(found.sum()), "within a class": int((found & (labels[:, None] == labels[None])).sum())}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the record")
    add("--model", type=Path, required=True, help="of two outputs")
    add("--weights", help="of the MobileNetV2 beside it (default: that of RETRIEVAL_SHARED)")
    add("--cache", type=Path, help="folder of unpacked images (default OUT/cache)")
    add("--queries", type=int, default=1000, help="photos that ask")
    add("--photos", type=int, default=20_000, help="others that they hide among, as far as there are so many")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine([options.seed])
    with ending_in_words("copies"):
        run(options)


def run(options: argparse.Namespace) -> None:
    """Measure and report."""
    splits = {name: list_split(name, work=options.cache or options.out / "cache").test for name in SEARCHED}
    photos = [
        record for name in SEARCHED[1:] for record in splits[name]
    ]  # those of people, of 100 pixels and more
    random = np.random.default_rng(options.seed)
    if options.queries > len(photos):
        raise InputError(f"--queries must be at most the {len(photos)} photos there are, got {options.queries}")
    order = random.permutation(len(photos))
    asking = [photos[row] for row in order[: options.queries]]
    others = [*(photos[row] for row in order[options.queries :]), *splits[SEARCHED[0]]][: options.photos]
    model = Embedder(options.model)
    backbone = load_backbone("mobilenet_v2", str(find_weights(options.weights)))
    sizes = PreprocessConfig(resize=256, crop=224)
    teacher = Extractor(backbone, sizes, device=torch.device("cpu"), precision="float32")
    hashes = find_hashes()
    reader = Reader(model, teacher, hashes)
    gallery = reader.read([*asking, *others])
    results: dict[str, dict[str, dict[str, float]]] = {"found first": {}, "called copies": {}, "wrong pairs": {}}
    edited = {name: reader.read(asking, edit) for name, edit in {**EDITS, **MORE_EDITS, **PAIR_EDITS}.items()}
    for name in (*EDITS, *MORE_EDITS):
        results["found first"][name] = compare(edited[name], gallery)
    originals = gallery.first(len(asking))
    rules = list_rules(model.contract.picture_threshold, hashes)
    for name in PAIR_EDITS:
        results["called copies"][name] = {
            rule: float(np.diagonal(calls(edited[name], originals)).mean()) for rule, calls in rules.items()
        }
    some = splits[SEARCHED[1]]
    clothes, labels = reader.read(some), np.unique([one.label for one in some], return_inverse=True)[1]
    results["wrong pairs"] = {rule: count_pairs(clothes, calls, labels) for rule, calls in rules.items()}
    text = _report(results, queries=len(asking), photos=len(others), clothes=len(some))
    print(text)
    write_record(options.out / "copies.json", settings=vars(options), results=results, text=text)


def _report(
    results: Mapping[str, Mapping[str, Mapping[str, float]]], *, queries: int, photos: int, clothes: int
) -> str:
    first, calls = results["found first"], results["called copies"]
    names = list(next(iter(first.values())))
    tables = [
        f"The original is found first, % of {queries:,} among {queries + photos:,}",
        format_table(["edited", *names], [[edit, *(f"{100 * found[name]:.1f}" for name in names)]
                                          for edit, found in first.items()]),
        f"Called copies, % of {queries:,}; wrong pairs among {clothes * (clothes - 1) // 2:,} of {clothes:,} clothes",
        format_table(
            ["rule", *calls, "wrong pairs", "of them within a class"],
            [[rule, *(f"{100 * found[rule]:.1f}" for found in calls.values()), *map(str, wrong.values())]
             for rule, wrong in results["wrong pairs"].items()],
        ),
    ]  # fmt: skip
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
