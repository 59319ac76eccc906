"""Does `retrieval index build` keep the machine busy, and is its memory bounded?

photos, large      images/s of the whole command on the clothing photos and on 12-megapixel JPEGs made of them, against
                   (a) the loop that people write: torchvision with the same weights, a DataLoader, faiss, in the best
                   of the settings tried in a warm-up, and (b) what the machine allows: our decoding alone at d
                   images/s and our model alone at i images/s share the cores, so 1 / (1/d + 1/i); with a GPU min(d, i)
hundred-thousand   small images from tar shards: the memory of the process against the images done, and at publication
decoding           files to model inputs: our way beside what it was and what people write, by dataset; what each step
                   takes; threads against processes
models             the photos by each of --model, --precision and --backend, Recall@1 of the gallery beside each rate,
                   over the loop in float32; of the model in the box and of files of one's own over MobileNetV2's
decoding-quality   Recall@1 of photos decoded in full and of the same decoded as we do

The contestants take turns, `--rounds` times, so that a noisy machine hits all alike; rates are medians (least - most).
Ours is the command's own figure, from its first check to the published gallery; its start is in the record. What is
measured is kept below OUT/measured, for these options, this code and this machine: a stopped command goes on, and the
same command prints the same again. Measure again with another --out.

    python -m benchmarks.indexing --out bench/index
    python -m benchmarks.indexing --out bench/index --part hundred-thousand
    python -m benchmarks.indexing --out bench/index --part models --model mobilenet_v2 --precision int8 \\
        --backend openvino --limit 300
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.parts import Part, make_parser, parse_counts, run_parts
from benchmarks.common.record import ending_in_words, find_photos, print_machine
from benchmarks.indexing.index_agreement import check_agreement, compare_vectors
from benchmarks.indexing.index_bench import Bench, check_counts, take_turns
from benchmarks.indexing.index_datasets import list_datasets, list_jpegs, measure_dataset
from benchmarks.indexing.index_images import list_images, make_large_images, read_all, sample_photos, take_evenly
from benchmarks.indexing.index_memory import measure_hundred_thousand
from benchmarks.indexing.index_models import MODELS, format_models, measure_models
from benchmarks.indexing.index_models import add_options as add_model_options
from benchmarks.indexing.index_peers import choose_inference, choose_loop, run_peer
from benchmarks.indexing.index_quality import compare_decoding
from benchmarks.indexing.index_tables import format_decoding, format_memory, format_quality, format_speed
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from index.threads import usable_cores

INPUTS_IN_MEMORY = 128
LEAST_INFERRED = 512  # a rate over fewer is mostly noise
BATCH_SIZES = (4, 8, 16, 32)  # tried beside the command's default


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, PARTS, default=("photos", "large", "decoding"))
    add = parser.add_argument
    add("--photos", type=Path, help="folder of photos (default: the clothing photos of RETRIEVAL_SHARED)")
    add("--weights", type=Path, help="safetensors of torchvision's mobilenet_v2 (default: of RETRIEVAL_SHARED)")
    add("--tiny-imagenet", type=Path, help="folder of tar files of small images (default: of RETRIEVAL_SHARED)")
    add("--limit", type=int, help="use only so many photos")
    add("--large-count", type=int, default=120, help="12-megapixel images to make")
    add("--count", type=int, default=100_000, help="small images to make")
    add("--shard-images", type=int, default=10_000, help="small images in one tar shard")
    decoded = "images that `decoding` decodes of a dataset, of 12 megapixels a fortieth (default: %(default)s)"
    add("--decoded-images", type=int, default=1000, help=decoded)
    compared = "photos that `decoding-quality` compares of a dataset (default: %(default)s)"
    add("--compared-images", type=int, default=1500, help=compared)
    add("--small-in-folders", action="store_true", help="small images in folders, not in tar shards")
    warm_up = "images to choose the contestants' settings on (large: an eighth for the loop)"
    add("--warm-up", type=int, default=512, help=warm_up)
    add_model_options(add)
    counts = ("large_count", "count", "shard_images", "warm_up", "limit", "decoded_images", "compared_images",
              "calibrated_images")  # fmt: skip
    options = parse_counts(parser, arguments, *counts)
    for model in options.model or ():
        if model not in MODELS and not Path(model).is_file():
            parser.error(f"--model {model}: neither a file nor one of {', '.join(MODELS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    with ending_in_words("indexing"):
        options = parse_options(arguments)
        _, tables = run_parts(PARTS, options, Bench.open(options))
        print_machine([options.seed])
        print("", *tables, sep="\n\n")


def measure_photos(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """The photos as they are, and in the warm-up our own command with other batches."""
    photos = _find_photos(bench, options)
    by_batch_size = measure_batch_sizes(bench, list_images(photos), options)
    speed = measure_speed(bench, options, "photos", photos, warm_up=options.warm_up)
    return {"what": "clothing photos", "by_batch_size": by_batch_size, **speed}


def measure_batch_sizes(bench: Bench, photos: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Rates of our command on the warm-up's photos by `--batch-size`, in turns."""
    some = take_evenly(photos, options.warm_up)
    read_all(some)
    listed = bench.folder / "warm-up.txt"
    listed.write_text("".join(f"{path}\n" for path in some))

    usual = Embedder(bench.model).usual_batch
    sizes = {
        str(size): partial(bench.build, [listed], "--batch-size", size) for size in sorted({*BATCH_SIZES, usual})
    }
    turns = take_turns(bench, "photos-batches", sizes, rounds=options.rounds)
    for documents in turns["rounds"].values():
        check_counts(documents, expected=len(some))
    return {"images": len(some), "default": usual, **turns}


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
    alone = bench.measure(
        f"{part}-inference-settings", lambda: choose_inference(few, cores=cores, on_gpu=bench.on_gpu)
    )
    looped = _loop_settings(bench, paths, index) | loop["chosen"]
    inferred = _inference_settings(bench, paths, max(len(paths), LEAST_INFERRED)) | alone["chosen"]
    contestants = {
        "ours": partial(bench.build, [folder]), "loop": partial(run_peer, "torch-loop", looped),
        "decoding": _decoding(bench, paths, "threads"), "inference": partial(run_peer, "inference", inferred),
    }  # fmt: skip
    turns = take_turns(bench, part, contestants, rounds=options.rounds)
    for name in ("ours", "loop"):
        check_counts(turns["rounds"][name], expected=len(paths))
    agreement = bench.measure(
        f"{part}-agreement", lambda: compare_vectors(Embedder(bench.model), paths, index=index)
    )
    check_agreement(agreement)
    rates = turns["rates"]
    d, i = rates["decoding"]["median"], rates["inference"]["median"]
    allowed = min(d, i) if bench.on_gpu else 1 / (1 / d + 1 / i)
    ours = rates["ours"]["median"]
    return {
        "images": len(paths), "mib": size / 2**20, "on_gpu": bench.on_gpu, "agreement": agreement,
        "loop_settings": loop, "inference_settings": alone, **turns, "allowed": allowed,
        "over_loop": ours / rates["loop"]["median"], "of_bound": ours / allowed,
    }  # fmt: skip


def _loop_settings(bench: Bench, paths: Sequence[Path], index: Path) -> dict[str, Any]:
    """Those that are not chosen."""
    return {
        "paths": list(map(str, paths)), "weights": bench.weights, "preprocess": bench.preprocess.to_json(),
        "index": index, "on_gpu": bench.on_gpu,
    }  # fmt: skip


def _decoding(bench: Bench, paths: Sequence[Path], pool: str) -> Callable[[], dict[str, Any]]:
    shared = {"paths": list(map(str, paths)), "preprocess": bench.preprocess.to_json()}
    return partial(run_peer, "decoding", {**shared, "pool": pool, "workers": usable_cores()})


def _inference_settings(bench: Bench, paths: Sequence[Path], images: int) -> dict[str, Any]:
    inputs = list(map(str, take_evenly(paths, INPUTS_IN_MEMORY)))
    return {"paths": inputs, "model": bench.model, "images": images}


def _find_photos(bench: Bench, options: argparse.Namespace) -> Path:
    folder = find_photos(options.photos)
    if options.limit is None:
        return folder
    return sample_photos(folder, bench.out / "images" / f"photos-{options.limit}", count=options.limit)


def measure_decoding(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Every dataset in every way, and step by step; photos in threads and in processes of the same number."""
    photos = list_jpegs(_find_photos(bench, options))
    datasets = list_datasets(bench, photos, count=options.decoded_images, seed=options.seed, own=options.photos)
    rows = [measure_dataset(bench, dataset, rounds=options.rounds) for dataset in datasets]
    pools = {pool: _decoding(bench, photos, pool) for pool in ("threads", "processes")}
    turns = take_turns(bench, "decoding", pools, rounds=options.rounds)
    return {"datasets": rows, "workers": usable_cores(), **turns}


def measure_quality(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """What our decoding costs in Recall@1, of frozen features and of the model in the box."""
    models = {"MobileNetV2, frozen": bench.model, "in the box": find_box()}
    return compare_decoding(
        models, work=bench.out, limit=options.compared_images, seed=options.seed, measure=bench.measure
    )


PARTS = {
    "photos": Part(measure_photos, format_speed),
    "large": Part(measure_large, format_speed),
    "hundred-thousand": Part(measure_hundred_thousand, format_memory),
    "decoding": Part(measure_decoding, format_decoding),
    "models": Part(
        lambda bench, options: measure_models(bench, options, _find_photos(bench, options)), format_models
    ),
    "decoding-quality": Part(measure_quality, format_quality),
}


if __name__ == "__main__":
    main()
