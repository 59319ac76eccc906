"""Options of commands that embed images, in a module that loads nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from index.config_fields import check_fields, option
from index.limits import MAX_PIXELS
from index.progress import BeginStep, Progress

DEDUP = ("off", "exact", "near")


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """Embedding and checkpoints; nothing here changes a vector."""

    batch_size: int = option(0, "Images in a batch; 0 is 8 on a CPU and 64 on a GPU.", at_least=0, at_most=4096)
    workers: int = option(0, "Threads that decode images; 0 is one per usable core.", at_least=0, at_most=256)
    checkpoint_images: int = option(
        256, "Images between two checkpoints: the most that a killed command repeats.", at_least=1, at_most=1_000_000
    )
    checkpoint_seconds: float = option(5.0, "Seconds between two checkpoints, at most.", at_least=0, at_most=86_400)
    max_pixels: int = option(
        MAX_PIXELS, "Images of more pixels than this (width x height) are skipped.", at_least=1, at_most=MAX_PIXELS
    )
    cache: Path | None = None  # folder of cached vectors

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """Watching the folders of a gallery."""

    scan_every: float = option(
        300.0,
        "Seconds between two scans of all sources, which find what no notice told of.",
        metavar="SECONDS",
        at_least=1,
        at_most=86_400,
    )
    notices: bool = option(True, "Use the system's notices of changed files too (extra `watch`).")
    quiet_s: float = 2.0  # without a change, before an update begins
    most_s: float = 30.0  # from the first change to its update, while more follow

    def __post_init__(self) -> None:
        check_fields(self)


class RunOptions(TypedDict, total=False):
    """Arguments of functions that write a gallery; `wait_s` limits the wait for another process that writes it."""

    config: BuildConfig | None
    progress: Progress
    begin_step: BeginStep
    wait_s: float
