"""What the machine allows: our decoding alone and our model alone, each on all cores, as indexing measures them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.indexing.index_images import take_evenly
from benchmarks.indexing.index_peers import choose_inference, run_peer
from benchmarks.serving.serve_galleries import ServedGallery
from index.threads import usable_cores

DECODING, INFERENCE = "decoding", "inference"
INPUTS_IN_MEMORY = 128


def choose_alone(served: ServedGallery, *, images: int) -> dict[str, Mapping[str, Any]]:
    """The settings of both, those of the model being the fastest of four tried on a quarter of the images."""
    photos = [Path(path) for path in served.photos]
    few, many = (list(map(str, take_evenly(photos, count))) for count in (INPUTS_IN_MEMORY, images))
    inference = {"paths": few, "model": served.model}
    chosen = choose_inference({**inference, "images": max(64, images // 4)}, cores=usable_cores(), on_gpu=False)
    preprocess = served.contract.preprocess.to_json()
    decoding = {"paths": many, "preprocess": preprocess, "pool": "threads", "workers": usable_cores()}
    return {DECODING: decoding, INFERENCE: {**inference, "images": images, **chosen["chosen"]}}


def measure_alone(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Images/s of each, once, in processes of their own."""
    return {name: run_peer(name, own)["images_per_second"] for name, own in settings.items()}
