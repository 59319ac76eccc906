"""A messy folder of images with labels wrong on purpose, a run on it, and rows of an audit."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from index.labels.issues import LabelIssue, LabelIssues
from tests.training.conftest import make_config, make_machine
from training.run.phases import Watcher
from training.run.train import train

COLOURS = {"blue": (10, 30, 250), "green": (10, 240, 20), "red": (250, 20, 10)}
PER_CLASS = 20
PLANTED = {"red/pl,anted \n1.png": "blue", "blue/planted 2.png": "green", "green/planted 3.png": "red"}
"""Images in a wrong folder, and what they show."""
NOT_UTF8 = os.fsdecode(b"green/caf\xe9.png")
ORIGINAL, COPY = "blue/00.png", "green/copy.png"
BACKBONE = "resnet18"  # its random weights tell the colours apart


def draw_patches(colour: tuple[int, int, int], *, seed: int) -> Image.Image:
    """Random patches, no two images alike, with a tint."""
    patches = np.random.default_rng(seed).integers(0, 256, size=(6, 6, 3)).astype(np.uint8)
    pixels = np.asarray(Image.fromarray(patches).resize((48, 48), Image.Resampling.NEAREST), dtype=np.float64)
    return Image.fromarray((0.4 * pixels + 0.6 * np.array(colour)).clip(0, 255).astype(np.uint8))


def draw_messy(folder: Path) -> Path:
    """Three classes of tinted images, three images in a wrong one, a name that is no UTF-8, a copy elsewhere."""
    for number, (label, colour) in enumerate(COLOURS.items()):
        (folder / label).mkdir(parents=True)
        for i in range(PER_CLASS):
            draw_patches(colour, seed=100 * number + i).save(folder / label / f"{i:02}.png")
    for seed, (name, shown) in enumerate(PLANTED.items()):
        draw_patches(COLOURS[shown], seed=1000 + seed).save(folder / name)
    draw_patches(COLOURS["green"], seed=2000).save(folder / NOT_UTF8)
    shutil.copyfile(folder / ORIGINAL, folder / COPY)
    return folder


@dataclass(frozen=True, slots=True)
class MessyRun:
    """A run, the folder it was trained on, and the cache of its features. Not to be written to."""

    path: Path
    data: Path
    cache: Path


def train_messy(data: Path, out: Path, *, cache: Path, watcher: Watcher | None = None, **changes: Any) -> MessyRun:
    """Raw features unless another method is asked for."""
    changes = {"backbone": BACKBONE, "method": "raw"} | changes
    asked = {"weights": "none", "recipe": "spa-paper", "holdout": False, "label_noise": "uniform:0", **changes}
    train(data, out, config=replace(make_config(**changes), given=asked), machine=make_machine(cache), watcher=watcher)
    return MessyRun(out, data, cache)


def audited(name: str, label: str, **more: Any) -> LabelIssue:
    """A row of an audit; what is not given is as plain as can be."""
    values: dict[str, Any] = {"id": 0, "sha256": f"hash of {name}", "p_error": 0.1, "confidence": 0.9} | more
    return LabelIssue(label=label, path=f"/photos/{name}", **values)


def audit_of(images: Iterable[LabelIssue], **more: Any) -> LabelIssues:
    items = tuple(replace(image, id=row) for row, image in enumerate(images))
    return LabelIssues(items, **({"checked": len(items), "noise_rate": 0.1} | more))
