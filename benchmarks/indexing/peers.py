"""Contestants beside `retrieval index build`, each in a process of its own: the usual loop of torchvision and faiss,
our decoding alone, our model alone. And the fastest settings of the loop and the model.

`run_peer(NAME, settings)` runs one of `PEERS`; the process prints one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from benchmarks.common.processes import run_alone
from index.images.image_files import decode_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.embedder import Embedder

Settings = Mapping[str, Any]

MODULE = "benchmarks.indexing.peers"
USUAL_BATCH = 32


def run_peer(name: str, settings: Settings) -> dict[str, Any]:
    """Run one of `PEERS` in a new process; its document, with `process_seconds`, the whole process.

    The setting `wait_policy` is that of `choose_wait_policy`.
    """
    own = dict(settings)
    policy, failing = own.pop("wait_policy", None), f"peers {name} exited with {{}}"
    started = time.perf_counter()
    document = run_alone(MODULE, name, settings=own, failing=failing, wait_policy=policy)
    return {**document, "process_seconds": time.perf_counter() - started}


def choose_loop(fixed: Settings, *, cores: int) -> dict[str, Any]:
    """The loop's fastest settings beside the fixed ones: workers and threads together, then one after the other."""
    first = {"batch_size": USUAL_BATCH, "channels_last": False, "wait_policy": "unset"}
    pairs = [(workers, threads) for workers in (cores, 0) for threads in sorted({1, cores})]
    steps: list[list[Settings]] = [
        [{"workers": workers, "threads": threads} for workers, threads in pairs],
        [{"batch_size": 8}],  # small batches reach all workers where images are few
        [{"channels_last": True}],
        [{"wait_policy": "PASSIVE"}],
    ]
    return _climb("torch-loop", fixed, first, steps)


def choose_inference(fixed: Settings, *, cores: int) -> dict[str, Any]:
    """The model's fastest way: one caller on all cores or a caller a core, and the size of a batch."""
    ways = [{"batch_size": size, "callers": callers} for size in (USUAL_BATCH, 8) for callers in sorted({1, cores})]
    return _climb("inference", fixed, {}, [ways])


def _climb(name: str, fixed: Settings, first: Settings, steps: Sequence[Sequence[Settings]]) -> dict[str, Any]:
    """The best settings found by keeping, step after step, the change that was fastest; and all that was tried."""
    chosen, best, tried = dict(first), 0.0, []
    for changes in steps:
        base = chosen
        for change in changes:
            settings = {**base, **change}
            rate = run_peer(name, {**fixed, **settings})["images_per_second"]
            tried.append({**settings, "images_per_second": rate})
            print(f"  warm-up of {name}, {settings}: {rate:.1f} images/s", file=sys.stderr, flush=True)
            if rate > best:
                chosen, best = settings, rate
    return {"chosen": chosen, "tried": tried}


def run_torch_loop(
    *,
    paths: Sequence[str],
    weights: str,
    preprocess: Settings,
    index: str,
    batch_size: int,
    workers: int,
    threads: int,
    channels_last: bool,
) -> dict[str, Any]:
    """The usual loop: torchvision's MobileNetV2 without its classifier, a DataLoader, faiss.

    The clock runs from building the model to the written index; imports are not counted.
    """
    import faiss
    import torch
    import torchvision
    from safetensors.torch import load_file
    from torch.utils.data import DataLoader
    from torchvision import transforms

    torch.set_num_threads(threads)
    config = PreprocessConfig.from_json(preprocess)
    started = time.perf_counter()
    model = torchvision.models.mobilenet_v2(weights=None)
    model.load_state_dict(load_file(weights))
    model.classifier = torch.nn.Identity()  # the pooled features
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.eval().to(memory_format=layout)
    transform = transforms.Compose(
        [
            transforms.Resize((config.resize, config.resize)),
            transforms.CenterCrop(config.crop),
            transforms.ToTensor(),
            transforms.Normalize(config.mean, config.std),
        ]
    )
    loader: DataLoader[Any] = DataLoader(cast(Any, _Photos(paths, transform)), batch_size, num_workers=workers)
    flat = None
    with torch.inference_mode():
        for batch in loader:
            vectors = torch.nn.functional.normalize(model(batch.to(memory_format=layout))).numpy()
            if flat is None:
                flat = faiss.IndexFlatIP(vectors.shape[1])
            flat.add(vectors)
    assert flat is not None
    faiss.write_index(flat, index)
    return {**_rate(len(paths), started), "new_images": flat.ntotal}


class _Photos:
    """A map-style dataset, as in the tutorials."""

    def __init__(self, paths: Sequence[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        with Image.open(self.paths[number]) as image:
            return self.transform(image.convert("RGB"))


def run_decoding(*, paths: Sequence[str], preprocess: Settings, workers: int) -> dict[str, Any]:
    """Our decoding and resizing alone, in threads, the pixels handed back and dropped.

    The clock runs once the workers have started and have each decoded something.
    """
    decode = partial(read_pixels, config=PreprocessConfig.from_json(preprocess))
    with ThreadPoolExecutor(workers) as executor:
        for _ in executor.map(decode, paths[: 4 * workers]):
            pass
        started = time.perf_counter()
        for _ in executor.map(decode, paths):
            pass
        return _rate(len(paths), started)


def read_pixels(path: str | Path, *, config: PreprocessConfig) -> Pixels:
    """One file to a (crop, crop, 3) uint8 model input, as `index build` makes it."""
    image = decode_image(Path(path).read_bytes(), name=str(path), target_side=config.resize)
    return preprocess_image(image, config)


def run_inference(
    *, paths: Sequence[str], model: str, images: int, batch_size: int, callers: int, backend: str | None = None
) -> dict[str, Any]:
    """Our model alone on `images` inputs, those of `paths` over and over, decoded before the clock runs.

    One caller has the runtime's threads on all cores; several have one thread each.
    """
    embedder = Embedder(Path(model), threads=None if callers == 1 else 1, backend=backend)
    config = embedder.contract.preprocess
    own = np.stack([read_pixels(path, config=config) for path in paths])
    pixels = own[np.arange(max(len(own), batch_size)) % len(own)]
    batches = list(_cycle_batches(pixels, images=images, batch_size=batch_size))
    with ThreadPoolExecutor(callers) as executor:
        for _ in executor.map(embedder.embed_batch, batches[: 2 * callers]):
            pass
        started = time.perf_counter()
        done = sum(len(vectors) for vectors in executor.map(embedder.embed_batch, batches))
        return _rate(done, started)


def _cycle_batches(pixels: Pixels, *, images: int, batch_size: int) -> Iterator[Pixels]:
    """Views of the inputs, so that many batches cost no memory."""
    places = len(pixels) // batch_size
    for number in range(-(-images // batch_size)):
        start = number % places * batch_size
        yield pixels[start : start + min(batch_size, images - number * batch_size)]


def _rate(images: int, started: float) -> dict[str, Any]:
    seconds = time.perf_counter() - started
    return {"images": images, "seconds": seconds, "images_per_second": images / seconds}


PEERS: dict[str, Callable[..., dict[str, Any]]]
PEERS = {"torch-loop": run_torch_loop, "decoding": run_decoding, "inference": run_inference}


if __name__ == "__main__":
    print(json.dumps(PEERS[sys.argv[1]](**json.load(sys.stdin))))
