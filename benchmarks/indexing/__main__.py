"""Indexing rate of `retrieval index build` beside torchvision, a DataLoader and faiss, and beside the machine's bound.

photos    the clothing photos
large     12-megapixel JPEGs made of them

The peer is the usual loop with the same weights, in the fastest of the settings tried in a warm-up. The bound: our
decoding alone at d images/s and our model alone at i images/s share the cores, so 1 / (1/d + 1/i). Contestants take
turns, `--rounds` times; rates are medians (least - most). Ours is the command's own figure, from its first check to the
published gallery. Measurements are kept in OUT/measured for the same options, code and machine: a stopped command
continues. With --model another model of ours is measured beside the same loop.

    python -m benchmarks.indexing --out bench/index
    retrieval export --backbone mobilenet_v2 --weights imagenet --precision int8 --images photos --out int8.onnx
    python -m benchmarks.indexing --out bench/index-int8 --part photos --model int8.onnx --backend openvino
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.parts import Part, make_parser, parse_counts, print_parts
from benchmarks.common.record import (
    describe_machine,
    digest,
    ending_in_words,
    find_photos,
    find_weights,
    hash_code,
    keep,
    run_retrieval,
)
from benchmarks.common.tables import format_spread, format_table, spread
from benchmarks.indexing.images import list_images, make_large_images, read_all, take_evenly
from benchmarks.indexing.peers import choose_inference, choose_loop, read_pixels, run_peer
from index.images.preprocess import PreprocessConfig
from index.model.embedder import Embedder
from index.threads import usable_cores

INPUTS_IN_MEMORY = 128
LEAST_INFERRED = 512  # a rate over fewer is mostly noise
LEAST_COSINE, COMPARED_VECTORS = 0.99, 128


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=tuple(PARTS))
    add = parser.add_argument
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--model", type=Path, help="an exported model of ours (default: the same MobileNetV2 as the loop's)")
    add("--backend", help="of our model, as `retrieval index build` takes it")
    add("--large-count", type=int, default=120, help="12-megapixel images to make (default: %(default)s)")
    warm_up = "images to choose the contestants' settings on; of large ones an eighth (default: %(default)s)"
    add("--warm-up", type=int, default=512, help=warm_up)
    return parse_counts(parser, arguments, "large_count", "warm_up")


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("indexing"):
        options = parse_options(arguments)
        print_parts(PARTS, options, Bench.open(options))


@dataclass(frozen=True, slots=True)
class Bench:
    """The model, and the folder of the measurements with the same options, code and machine.

    Attributes:
        model: MobileNetV2 of the weights as `retrieval export` writes it, or the model of --model.
    """

    out: Path
    folder: Path
    weights: Path
    model: Path
    is_same_model: bool
    backend: str | None
    preprocess: PreprocessConfig

    @classmethod
    def open(cls, options: argparse.Namespace) -> Bench:
        """Export the model, once."""
        weights = Path(find_weights(options.weights)).resolve()
        chosen = {name: value for name, value in vars(options).items() if name not in ("out", "part", "rounds")}
        code = hash_code("index", "benchmarks/indexing")
        measured_by = {"options": chosen, "machine": describe_machine(), "code": code, "weights": str(weights)}
        folder = options.out.resolve() / "measured" / digest(measured_by)
        folder.mkdir(parents=True, exist_ok=True)
        model = options.model.resolve() if options.model else folder / "model.onnx"
        if not options.model and not model.exists():
            run_retrieval("export", "--backbone", "mobilenet_v2", "--weights", weights, "--out", model)
        preprocess, same = Embedder(model, runs=False).contract.preprocess, options.model is None
        return cls(options.out.resolve(), folder, weights, model, same, options.backend, preprocess)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The document that `make` returns, or returned before a stop."""
        document = keep(self.folder / f"{name}.json", make)
        rate = document.get("images_per_second")
        print(f"  {name}" + (f": {rate:.1f} images/s" if rate else ""), file=sys.stderr, flush=True)
        return document

    def build(self, sources: Iterable[Path]) -> dict[str, Any]:
        """One `retrieval index build` into a new gallery, which is removed again."""
        gallery = self.folder / "gallery"
        shutil.rmtree(gallery, ignore_errors=True)
        backend = ("--backend", self.backend) if self.backend else ()
        built = run_retrieval("index", "build", self.model, *sources, "--out", gallery, "--no-cache", *backend)
        shutil.rmtree(gallery)
        return {**built.document, "process_seconds": built.seconds, "peak_mib": built.peak_mib}


def measure_photos(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """The photos as they are."""
    folder = find_photos(options.photos)
    return {"what": "clothing photos", **measure_speed(bench, options, "photos", folder, warm_up=options.warm_up)}


def measure_large(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """12-megapixel JPEGs."""
    folder = bench.out / "images" / f"large-{options.large_count}-{options.seed}"
    make_large_images(find_photos(options.photos), folder, count=options.large_count, seed=options.seed)
    warm_up = -(-options.warm_up // 8)
    return {"what": "12-megapixel JPEGs", **measure_speed(bench, options, "large", folder, warm_up=warm_up)}


def measure_speed(
    bench: Bench, options: argparse.Namespace, part: str, folder: Path, *, warm_up: int
) -> dict[str, Any]:
    """All contestants in turns on the images of a folder; medians, and the two ratios."""
    paths = list_images(folder)
    size = read_all(paths)
    cores, index = usable_cores(), bench.folder / f"{part}.faiss"
    some = _loop_settings(bench, take_evenly(paths, warm_up), index)
    loop = bench.measure(f"{part}-loop-settings", lambda: choose_loop(some, cores=cores))
    few = _inference_settings(bench, paths, options.warm_up)
    alone = bench.measure(f"{part}-inference-settings", lambda: choose_inference(few, cores=cores))
    looped = _loop_settings(bench, paths, index) | loop["chosen"]
    inferred = _inference_settings(bench, paths, max(len(paths), LEAST_INFERRED)) | alone["chosen"]
    decoding = {"paths": list(map(str, paths)), "preprocess": bench.preprocess.to_json(), "workers": cores}
    contestants: Mapping[str, Callable[[], dict[str, Any]]] = {
        "ours": partial(bench.build, [folder]),
        "loop": partial(run_peer, "torch-loop", looped),
        "decoding": partial(run_peer, "decoding", decoding),
        "inference": partial(run_peer, "inference", inferred),
    }
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(options.rounds):
        for name, make in contestants.items():
            rounds[name].append(bench.measure(f"{part}-{number}-{name}", make))
    for name in ("ours", "loop"):
        check_counts(rounds[name], expected=len(paths))
    agreement = None
    if bench.is_same_model:
        agreement = bench.measure(f"{part}-agreement", lambda: compare_vectors(bench.model, paths, index=index))
        check_agreement(agreement)
    rates = {name: spread([each["images_per_second"] for each in found]) for name, found in rounds.items()}
    d, i, ours = (rates[name]["median"] for name in ("decoding", "inference", "ours"))
    allowed = 1 / (1 / d + 1 / i)
    return {
        "images": len(paths),
        "mib": size / 2**20,
        "agreement": agreement,
        "loop_settings": loop,
        "inference_settings": alone,
        "rounds": rounds,
        "rates": rates,
        "allowed": allowed,
        "over_loop": ours / rates["loop"]["median"],
        "of_bound": ours / allowed,
    }


def _loop_settings(bench: Bench, paths: Sequence[Path], index: Path) -> dict[str, Any]:
    """The settings that are not chosen."""
    return {
        "paths": list(map(str, paths)),
        "weights": bench.weights,
        "preprocess": bench.preprocess.to_json(),
        "index": index,
    }


def _inference_settings(bench: Bench, paths: Sequence[Path], images: int) -> dict[str, Any]:
    inputs = list(map(str, take_evenly(paths, INPUTS_IN_MEMORY)))
    return {"paths": inputs, "model": bench.model, "images": images, "backend": bench.backend}


def compare_vectors(model: Path, paths: Sequence[Path], *, index: Path) -> dict[str, Any]:
    """Cosines between our vectors and those in the loop's index of all paths, of some images."""
    import faiss

    embedder, flat = Embedder(model), faiss.read_index(str(index))
    cosines = []
    for path in take_evenly(paths, COMPARED_VECTORS):
        ours = embedder.embed_batch(read_pixels(path, config=embedder.contract.preprocess)[None])[0]
        cosines.append(float(ours @ flat.reconstruct(paths.index(path))))
    return {"images": len(cosines), "mean_cosine": statistics.fmean(cosines), "least_cosine": min(cosines)}


def check_agreement(agreement: Mapping[str, Any]) -> None:
    """End the benchmark where the contestants do not compute the same."""
    if not agreement["mean_cosine"] > LEAST_COSINE:
        mean = agreement["mean_cosine"]
        sys.exit(f"mean cosine {mean:.4f} between the vectors, {LEAST_COSINE} needed; the comparison is void")


def check_counts(documents: Sequence[Mapping[str, Any]], *, expected: int) -> None:
    """End the benchmark where a contestant left images out."""
    for document in documents:
        if document["new_images"] != expected:
            sys.exit(f"a contestant indexed {document['new_images']} of {expected} images; the comparison is void")


def format_speed(results: Mapping[str, Any]) -> str:
    """The results of `measure_speed` as Markdown."""
    rates = results["rates"]
    loop, alone = (results[name]["chosen"] for name in ("loop_settings", "inference_settings"))
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in loop.items())
    batches = f"batches of {alone['batch_size']}, {alone['callers']} at once"
    rows = [
        ("`retrieval index build`", format_spread(rates["ours"])),
        (f"torchvision + DataLoader + faiss ({settings})", format_spread(rates["loop"])),
        ("decoding and resizing alone, d", format_spread(rates["decoding"])),
        (f"model alone, i ({batches})", format_spread(rates["inference"])),
        ("the machine's bound, 1 / (1/d + 1/i)", f"{results['allowed']:.1f}"),
        ("ours / loop", f"{results['over_loop']:.2f}"),
        ("ours / bound", f"{results['of_bound']:.2f}"),
    ]
    table = format_table([f"{results['images']:,} {results['what']}, {results['mib']:.0f} MiB", "images/s"], rows)
    if (agreement := results["agreement"]) is None:
        return table
    mean, least = agreement["mean_cosine"], agreement["least_cosine"]
    note = f"Cosine between our vectors and the loop's, {agreement['images']} images: mean {mean:.4f}"
    return f"{table}\n\n{note}, least {least:.4f}."


PARTS = {"photos": Part(measure_photos, format_speed), "large": Part(measure_large, format_speed)}


if __name__ == "__main__":
    main()
