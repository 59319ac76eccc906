"""Small real runs: drawn images, a small backbone with random weights, a few epochs."""

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from index.config_fields import option_names
from tests.photos import KINDS, read_photo, write_photos
from tests.training.runs import InterruptionError, interrupt_at, weights
from tests.training.small_towers import add_small_towers
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.options.losses import option_groups
from training.options.machine import Machine
from training.options.resolve import resolve, unused_options
from training.run.phases import Watcher
from training.run.train import train

BACKBONE = "squeezenet1_1"
IMAGES = (
    *("--backbone", BACKBONE, "--weights", "none", "--resize", "40", "--crop", "32"),
    *("--precision", "float32", "--workers", "1"),
)
EVERY_METHOD = (*IMAGES, "--embedding-dim", "8", "--recipe", "spa-paper", "--no-holdout")
FLAGS = (*EVERY_METHOD, "--head-epochs", "4", "--head-batch-size", "16")
"""The command line of `make_config` and `make_machine`; with `OF_MODULE` where the confidence module trains."""
OF_MODULE = ("--confidence-epochs", "3", "--confidence-hidden", "16", "--confidence-lr", "0.01")


def make_config(**changes: Any) -> TrainConfig:
    """A quick run's options, frozen where none of fine-tuning is given; any field of any concern can be changed."""
    quick = {
        "resize": 40,
        "crop": 32,
        "confidence_epochs": 3,
        "confidence_hidden": 16,
        "confidence_lr": 0.01,
        "embedding_dim": 8,
        "head_epochs": 4,
        "head_batch_size": 16,
        "holdout": False,
    }
    frozen = {} if set(option_names(FinetuneConfig)) & set(changes) else {"frozen": True}
    top = {"backbone": BACKBONE, "weights": "none", "recipe": "spa-paper"} | frozen | changes
    idle = {name for name, _ in unused_options(resolve(**top))} | ({"head_epochs"} if "head_steps" in top else set())
    return resolve(**{name: value for name, value in quick.items() if name not in idle} | top)


def all_options() -> dict[str, dataclasses.Field[Any]]:
    """The options of training, those of every loss among them, by field name."""
    kinds = [kind for kind in get_type_hints(TrainConfig).values() if dataclasses.is_dataclass(kind)]
    fields = [field for kind in (TrainConfig, *kinds, *option_groups()) for field in dataclasses.fields(kind)]
    return {field.name: field for field in fields if "help" in field.metadata}


def make_machine(cache: Path, **changes: Any) -> Machine:
    """One CPU thread of decoding, float32 features."""
    return Machine(**({"cache": cache, "device": torch.device("cpu"), "workers": 1, "precision": "float32"} | changes))


def draw_over(root: Path) -> Path:
    """Put drawn images into the place of all images below a folder, one kind for every folder that has some."""
    images = sorted(path for path in root.rglob("*") if path.suffix.lower() == ".jpg")
    folders = sorted({path.parent for path in images})
    for number, path in enumerate(images):
        kind = KINDS[folders.index(path.parent)]
        path.unlink()  # several may be links to one file
        read_photo(kind, number, size=48).save(path)
    return root


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run folder, what it trained on, and what it reported."""

    path: Path
    data: Path
    val: Path
    report: dict[str, Any]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four kinds of twelve drawn images."""
    folder = tmp_path_factory.mktemp("pictures")
    write_photos(folder, kinds=KINDS[:4], pictures_per_kind=12, seed=0, size=48)
    return folder


@pytest.fixture(scope="session")
def other_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three other kinds of six drawn images."""
    folder = tmp_path_factory.mktemp("other")
    write_photos(folder, kinds=KINDS[4:7], pictures_per_kind=6, seed=0, size=48)
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feature cache that the runs of the whole session share."""
    return tmp_path_factory.mktemp("cache")


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """Trains on the drawn images, or on `data`, into folders of these names below one."""

    folder: Path
    pictures: Path
    cache: Path

    def __call__(
        self,
        name: str = "run",
        *,
        data: Path | None = None,
        config: TrainConfig | None = None,
        machine: Machine | None = None,
        val: Path | None = None,
        resume: bool = False,
        watcher: Watcher | None = None,
        stop: tuple[str, int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The report of a run with these options, or none where it is interrupted at a (phase, epoch)."""
        run = partial(
            train,
            data or self.pictures,
            self.folder / name,
            config=config or make_config(**options),
            machine=machine or make_machine(self.cache),
            val=val,
            resume=resume,
        )
        if stop is None:
            return run(watcher=watcher)
        with pytest.raises(InterruptionError):
            run(watcher=interrupt_at(*stop))
        return {}

    def weights(self, name: str = "run") -> str:
        return weights(self.folder / name)

    def copy_pictures(self) -> Path:
        return Path(shutil.copytree(self.pictures, self.folder / "photos"))


@pytest.fixture
def trainer(tmp_path: Path, pictures: Path, cache: Path) -> Trainer:
    return Trainer(tmp_path, pictures, cache)


@pytest.fixture(scope="session")
def finished_run(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> FinishedRun:
    """One uninterrupted run with noisy labels and validation images. Not to be written to."""
    out = tmp_path_factory.mktemp("runs") / "run"
    config = make_config(label_noise="uniform:0.25")
    report = train(pictures, out, config=config, machine=make_machine(cache), val=other_pictures)
    return FinishedRun(out, pictures, other_pictures, report)


@pytest.fixture(scope="session")
def small_towers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The small models of `tests.training.small_towers`, known to open_clip."""
    add_small_towers(tmp_path_factory.mktemp("towers"))


def random_images(count: int, side: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
