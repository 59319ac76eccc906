"""How much of its teacher the small model of two outputs keeps, on classes and photos that it did not learn from.

With --teach it is made first: half of the classes of Tiny-ImageNet, clothes and groceries teach, without their labels,
for hours; the same command goes on after a stop. The other half is searched by `kind`, and cars, which take no part,
beside the teacher's features and those that need no model: raw, and reduced to the same width. It is timed on all
cores.

    python -m benchmarks.model_in_the_box --out bench/box --teach --epochs 30
    python -m benchmarks.model_in_the_box --out bench/box --model model.onnx
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.record import ending_in_words, find_weights, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.noise.splits import list_split
from export.exports import export_student
from index.arrays import Floats, Vectors
from index.images.preprocess import Pixels, PreprocessConfig
from index.model.embedder import Embedder
from index.outputs import KIND
from index.threads import map_ahead, usable_cores
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor, extract_features, open_store
from training.data.datasets import Record
from training.distill.fit import DistillConfig, DistillEpoch
from training.distill.run import TEACHES_BY, distill
from training.head.untrained import fit_untrained
from training.options.machine import resolve_device
from training.run.validate import ValidationSet, embed_features

TEACH = ("tiny-imagenet", "clothing-disjoint", "groceries-disjoint")
SEARCHED = (*TEACH, "cars")
MODEL = "box.onnx"
_BATCH, _TIMED = 8, 400  # images


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the student and the records")
    add("--teach", action="store_true", help=f"make the student, and OUT/{MODEL} of it")
    add("--model", type=Path, help=f"of two outputs (default OUT/{MODEL})")
    add("--weights", help="of the teacher (default: the MobileNetV2 of RETRIEVAL_SHARED)")
    add("--cache", type=Path, help="folder of features and unpacked images (default OUT/cache)")
    add("--device", default="auto", help="of teacher and training: auto, cpu or cuda (default: auto)")
    add(
        "--side", type=int, default=128, help="with --teach: pixels a side of what the student sees (default: 128)"
    )
    for field in _numbers():
        add(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default,
            help=f"with --teach (default: {field.default})")  # fmt: skip
    options = parser.parse_args(arguments)
    print_machine([options.seed])
    with ending_in_words("model_in_the_box"):
        run(options)


def _numbers() -> list:
    return [field for field in fields(DistillConfig) if isinstance(field.default, int | float | str)]


def run(options: argparse.Namespace) -> None:
    """Teach, where that is asked for, and measure."""
    cache = options.cache or options.out / "cache"
    splits = {name: list_split(name, work=cache) for name in SEARCHED}
    taught = sorted({record.path for name in TEACH for record in splits[name].train})
    backbone = load_backbone("mobilenet_v2", str(find_weights(options.weights)))
    whole = PreprocessConfig(resize=224, crop=224)
    teacher = Extractor(backbone, whole, device=resolve_device(options.device), precision="float32")
    if options.teach:
        sizes = PreprocessConfig(resize=options.side, crop=options.side)
        config = DistillConfig(preprocess=sizes, **{one.name: getattr(options, one.name) for one in _numbers()})
        distill(
            taught, options.out, teacher=teacher, config=config, cache=cache, workers=usable_cores(),
            on_epoch=_tell, on_images=_tell_images,
        )  # fmt: skip
        export_student(options.out, options.out / MODEL)
    model = options.model or options.out / MODEL
    student = Embedder(model).giving(KIND)
    head = fit_untrained(TEACHES_BY, _extract(teacher, taught, cache=cache), embedding_dim=student.width)
    rows, results = [], {}
    for name, split in splits.items():
        labels = np.unique([record.label for record in split.test], return_inverse=True)[1].astype(np.int64)
        gallery = None if split.is_gallery is None else np.array(split.is_gallery)
        found = _extract(teacher, [record.path for record in split.test], cache=cache)
        validation = ValidationSet(found, labels, gallery, (1,))
        recall = {
            "teacher, 1280-d": _recall(validation, found / np.linalg.norm(found, axis=1, keepdims=True)),
            f"teacher, {student.width}-d": _recall(validation, embed_features(head, found)),
            f"student, {student.width}-d": _recall(validation, _embed(student, split.test)),
        }
        results[name] = recall
        _, equal, own = recall.values()
        rows.append([name, *(f"{100 * one:.1f}" for one in recall.values()), f"{100 * own / equal:.0f} %"])
    seconds = time_image(student, splits[TEACH[1]].test[:_TIMED])
    head_row = ["classes that nobody learnt", *next(iter(results.values())), "kept"]
    text = f"Recall@1, %; {1000 * seconds:.1f} ms an image, {model.stat().st_size / 1e6:.1f} MB\n\n"
    text += format_table(head_row, rows)
    print(text)
    results |= {"seconds": seconds, "bytes": model.stat().st_size, "contract": asdict(student.contract)}
    write_record(options.out / "kind.json", settings=vars(options), results=results, text=text)


def _embed(model: Embedder, records: Sequence[Record]) -> Vectors:
    """(N, D) float32 unit rows."""
    pixels = _read(model, [record.path for record in records])
    return np.concatenate([model.embed_batch(pixels[at : at + 64]) for at in range(0, len(pixels), 64)])


def time_image(model: Embedder, records: Sequence[Record]) -> float:
    """Median seconds of an image, decoded and embedded by the batch, on all cores."""
    paths, seconds = [record.path for record in records], []
    for start in range(0, len(paths), _BATCH):
        begun, some = time.perf_counter(), paths[start : start + _BATCH]
        model.embed_batch(_read(model, some))
        seconds.append((time.perf_counter() - begun) / len(some))
    return float(np.median(seconds))


def _read(model: Embedder, paths: Sequence[Path]) -> Pixels:
    """(N, crop, crop, 3) uint8, as the model takes them."""
    read = partial(_read_one, model)
    return np.stack(list(map_ahead(read, paths, workers=usable_cores(), ahead=64)))


def _read_one(model: Embedder, path: Path) -> Pixels:
    return model.preprocess(path.read_bytes(), name=str(path))


def _extract(extractor: Extractor, paths: Sequence[Path], *, cache: Path) -> Floats:
    store = open_store(cache, extractor, views=1)
    found = extract_features(paths, store=store, extractor=extractor, views=1, workers=usable_cores(),
                             progress=lambda done, total: _tell_images("teacher", done, total))  # fmt: skip
    return store.load(found.hashes)[:, 0]


def _recall(validation: ValidationSet, embeddings: Floats) -> float:
    return validation.score(embeddings).recall[1]


def _tell(epoch: DistillEpoch) -> None:
    print(epoch, file=sys.stderr, flush=True)


def _tell_images(what: str, done: int, total: int) -> None:
    if done == total or done % max(1, total // 10) == 0:
        print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
