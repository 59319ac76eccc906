"""Whom indexing is measured against."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.indexing.index_images import list_images
from benchmarks.indexing.index_peers import run_decoding, run_inference
from tests.models import PREPROCESS


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_all_images_are_decoded_in_either_pool(image_folder: Path, pool: str) -> None:
    paths = list(map(str, list_images(image_folder)))
    # In a process of its own, as the benchmark runs it: a pool of processes is not forked from one with threads.
    settings = {"paths": paths, "preprocess": PREPROCESS.to_json(), "pool": pool, "workers": 2}
    if pool == "threads":
        found = run_decoding(**settings)
    else:
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.indexing.index_peers", "decoding"],
            input=json.dumps(settings), capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = json.loads(finished.stdout)
    assert found["images"] == 15
    assert found["images_per_second"] == pytest.approx(15 / found["seconds"])


@pytest.mark.parametrize(("size", "callers"), [(4, 1), (4, 2), (20, 1)])
def test_the_model_alone_takes_as_many_images_as_asked(
    image_folder: Path, tiny_model: Path, size: int, callers: int
) -> None:
    paths = list(map(str, list_images(image_folder)))
    found = run_inference(paths=paths, model=str(tiny_model), images=50, batch_size=size, callers=callers)
    assert found["images"] == 50
