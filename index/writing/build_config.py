"""The options of the commands that embed images, in a module that loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from index.errors import InputError
from index.limits import MAX_PIXELS

DEDUP = ("off", "exact", "near")


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """How images are embedded; nothing here changes a vector.

    `cache` is the folder of vectors that were embedded before, None for none.
    """

    batch_size: int = field(
        default=0,
        metadata={
            "help": "Images the model takes at once; 0 is 8 on a CPU, whose caches hold so many, 64 on a GPU."
        },
    )
    workers: int = field(default=0, metadata={"help": "Threads that decode images; 0 is one per usable core."})
    checkpoint_images: int = field(
        default=256,
        metadata={"help": "Images between two checkpoints: the most that a killed command does again."},
    )
    checkpoint_seconds: float = field(default=5.0, metadata={"help": "Seconds between two checkpoints, at most."})
    max_pixels: int = field(
        default=MAX_PIXELS, metadata={"help": "Images of more pixels than this (width x height) are skipped."}
    )
    cache: Path | None = None

    def __post_init__(self) -> None:
        ranges = {
            "batch_size": (0, 4096),
            "workers": (0, 256),
            "checkpoint_images": (1, 1_000_000),
            "checkpoint_seconds": (0, 86_400),
            "max_pixels": (1, MAX_PIXELS),
        }
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                kind = "number" if name == "checkpoint_seconds" else "whole number"
                raise InputError(f"{name} must be a {kind} in {low}..{high}, got {getattr(self, name)}")
