"""The options of `retrieval index build`, in a module that loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field

from index.errors import InputError
from index.limits import MAX_PIXELS


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """How a gallery is built; nothing here changes a vector beyond its last bits."""

    batch_size: int = field(default=32, metadata={"help": "Images the model takes at once."})
    workers: int = field(default=0, metadata={"help": "Threads that decode images; 0 is one per usable core."})
    checkpoint_images: int = field(
        default=1024,
        metadata={"help": "Files between two checkpoints: the most that a killed build does again."},
    )
    max_pixels: int = field(
        default=MAX_PIXELS, metadata={"help": "Images of more pixels than this (width x height) are skipped."}
    )

    def __post_init__(self) -> None:
        ranges = {
            "batch_size": (1, 4096),
            "workers": (0, 256),
            "checkpoint_images": (1, 1_000_000),
            "max_pixels": (1, MAX_PIXELS),
        }
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} must be a whole number in {low}..{high}, got {getattr(self, name)}")
