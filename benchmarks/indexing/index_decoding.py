"""Image files to model inputs: our way beside what it was before and what people write, and the steps it consists of.

All ways of a dataset take turns in one process; of each the images a second by the clock with one thread and with one a
core, and, as other work on the machine does not show in it, the images a second of processor time. `run_ways` and
`run_steps` are what the process does; it prints one JSON document.

What a way is counts in `WAYS`: reading the file is a part of each.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from simplejpeg import decode_jpeg

from index.images.decode import decode_here
from index.images.image_files import decode_image
from index.images.image_headers import is_cheap
from index.images.perceptual_hash import perceptual_hash
from index.images.preprocess import Pixels, PreprocessConfig, crop_pixels, preprocess_image, resize_image
from index.images.taken_time import parse_taken_time
from index.images.turbo import read_turbo
from index.limits import MAX_PIXELS

MODULE = "benchmarks.indexing.index_decoding"


def decode_ours(data: bytes, config: PreprocessConfig) -> Pixels:
    """As `index build` does it."""
    return preprocess_image(decode_image(data, name="", target_side=config.resize), config)


def decode_before(data: bytes, config: PreprocessConfig) -> Pixels:
    """As `index build` did it: our decode without simplejpeg, Pillow's `draft` for large ones; all of it resized."""
    if not is_cheap(data):
        sys.exit("an image that is not proven cheap would be decoded elsewhere; the comparison is void")
    image = decode_here(data, name="", target_side=config.resize, max_pixels=MAX_PIXELS)
    return _crop_centre(resize_image(image, config), config)


def decode_in_full(data: bytes, config: PreprocessConfig) -> Pixels:
    """The reference: Pillow's decode of all pixels, and one antialiased resize."""
    with Image.open(io.BytesIO(data)) as image:
        return _crop_centre(resize_image(image.convert("RGB"), config), config)


def decode_by_draft(data: bytes, config: PreprocessConfig) -> Pixels:
    """What people write with Pillow alone, who know of `draft`."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (2 * config.resize, 2 * config.resize))
        return _crop_centre(resize_image(image.convert("RGB"), config), config)


def decode_by_simplejpeg(data: bytes, config: PreprocessConfig) -> Pixels:
    """What people write with simplejpeg: no orientation, no check."""
    pixels = decode_jpeg(data, min_width=2 * config.resize, min_height=2 * config.resize)
    return _crop_centre(resize_image(Image.fromarray(pixels), config), config)


WAYS: Mapping[str, Callable[[bytes, PreprocessConfig], Pixels]] = {
    "ours": decode_ours, "before": decode_before, "Pillow, in full": decode_in_full,
    "Pillow, draft": decode_by_draft, "simplejpeg": decode_by_simplejpeg,
}  # fmt: skip


def _crop_centre(pixels: Pixels, config: PreprocessConfig) -> Pixels:
    margin = (config.resize - config.crop) // 2
    return crop_pixels(pixels, top=margin, left=margin, size=config.crop)


def run_ways(*, paths: Sequence[str], preprocess: Mapping[str, Any], threads: int, rounds: int) -> dict[str, Any]:
    """Each way on all images with one thread and with several, then each again: the rates of every round."""
    config = PreprocessConfig.from_json(preprocess)
    found: dict[str, dict[str, list[float]]] = {
        name: {"one_thread": [], "threads": [], "of_processor_time": []} for name in WAYS
    }
    for way in WAYS.values():
        way(Path(paths[0]).read_bytes(), config)
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            for name, way in WAYS.items():
                decode = partial(_decode_file, way=way, config=config)
                started, used = time.perf_counter(), time.process_time()
                for path in paths:
                    decode(path)
                found[name]["one_thread"].append(len(paths) / (time.perf_counter() - started))
                found[name]["of_processor_time"].append(len(paths) / (time.process_time() - used))
                started = time.perf_counter()
                for _ in pool.map(decode, paths):
                    pass
                found[name]["threads"].append(len(paths) / (time.perf_counter() - started))
    return {"images": len(paths), "rates": found}


def _decode_file(path: str, *, way: Callable[[bytes, PreprocessConfig], Pixels], config: PreprocessConfig) -> None:
    way(Path(path).read_bytes(), config)


def run_steps(*, paths: Sequence[str], preprocess: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Microseconds of processor time that an image takes in each step of our way; the median of the rounds."""
    config = PreprocessConfig.from_json(preprocess)
    rows = [_time_steps(paths, config) for _ in range(rounds + 1)][1:]  # the first loads what is loaded once
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _time_steps(paths: Sequence[str], config: PreprocessConfig) -> dict[str, float]:
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        started = time.thread_time()
        result = step()
        seconds[name] = seconds.get(name, 0.0) + time.thread_time() - started
        return result

    for path in paths:
        data = timed("read", partial(Path(path).read_bytes))
        timed("SHA-256", lambda data=data: hashlib.sha256(data).hexdigest())
        timed("headers", partial(is_cheap, data))
        timed("EXIF time", lambda data=data: parse_taken_time(data[: 1 << 16]))
        opened = timed("open", partial(Image.open, io.BytesIO(data), formats=["JPEG"]))
        opened.draft(None, (2 * config.resize, 2 * config.resize))
        if timed("pixels by simplejpeg", partial(read_turbo, data, opened)) is None:
            sys.exit(f"{path}: simplejpeg leaves it to Pillow; the steps would be of something else")
        image = timed("pixels by Pillow", lambda opened=opened: opened.convert("RGB"))
        timed("orientation", opened.getexif)
        timed("resize to all", partial(resize_image, image, config))
        pixels = timed("resize to the centre", partial(preprocess_image, image, config))
        timed("perceptual hash", partial(perceptual_hash, pixels))
    return {name: 1e6 * each / len(paths) for name, each in seconds.items()}


RUNS: dict[str, Callable[..., dict[str, Any]]] = {"ways": run_ways, "steps": run_steps}


if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]](**json.load(sys.stdin))))
