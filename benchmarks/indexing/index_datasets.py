"""What `benchmarks.indexing --part decoding` decodes, and how it has that measured: a process a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.alone import run_alone
from benchmarks.common.record import find_photos, unpack_shared
from benchmarks.indexing.index_bench import Bench
from benchmarks.indexing.index_decoding import MODULE
from benchmarks.indexing.index_images import list_images, make_large_images, read_all, take_evenly
from index.images.preprocess import PreprocessConfig
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from index.threads import usable_cores

SMALL_FOR_LARGE = 40  # images that are decoded in place of one of 12 megapixels


class Dataset(NamedTuple):
    """JPEG files, and the model's input that they become."""

    name: str
    paths: Sequence[Path]
    preprocess: PreprocessConfig


def list_datasets(
    bench: Bench, photos: Sequence[Path], *, count: int, seed: int, own: Path | None
) -> Iterator[Dataset]:
    """`count` images of each: photos for both models, small ones where the photos are no `own`, and large ones."""
    images, some = bench.out / "images", take_evenly(photos, count)
    yield Dataset("photos", some, bench.preprocess)
    yield Dataset("photos, model in the box", some, Embedder(find_box()).contract.preprocess)
    if own is None:
        for name, archive in (("groceries", "groceries.tar"), ("Tiny-ImageNet", "tiny-imagenet/train.tar")):
            paths = list_jpegs(unpack_shared(archive, images))
            yield Dataset(name, take_evenly(paths, count), bench.preprocess)
    large = max(1, count // SMALL_FOR_LARGE)
    folder = images / f"large-{large}-{seed}"
    made = make_large_images(find_photos(own), folder, count=large, seed=seed)
    yield Dataset("12 megapixels", list_images(made), bench.preprocess)


def list_jpegs(folder: Path) -> list[Path]:
    """Those below a folder, in sorted order."""
    return [path for path in list_images(folder) if path.suffix.lower() in (".jpg", ".jpeg")]


def measure_dataset(bench: Bench, dataset: Dataset, *, rounds: int) -> dict[str, Any]:
    """The rates of all ways, and what each step of ours takes."""
    read_all(dataset.paths)
    config = dataset.preprocess
    given = {"paths": list(map(str, dataset.paths)), "preprocess": config.to_json(), "rounds": rounds}

    def run(word: str, **more: int) -> dict[str, Any]:
        return run_alone(MODULE, word, settings={**given, **more}, failing="index_decoding exited with {}")

    name = f"decoding-{dataset.name.replace(' ', '-')}"
    ways = bench.measure(f"{name}-ways", partial(run, "ways", threads=usable_cores()))
    steps = bench.measure(f"{name}-steps", partial(run, "steps"))
    return {"what": f"{dataset.name}, to {config.resize}/{config.crop}", **ways, "steps": steps}
