"""A training in TensorBoard: an event file in a folder of the run's own, below the folder that is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from index.errors import InputError
from index.text import printable_path
from training.data.datasets import require_outside
from training.run.log.loggers import MAIN, WatchedRun


class TensorBoardTracker:
    """Scalars `PHASE/FIGURE` by epoch, the options as hyper-parameters; every epoch is on disk when it is told."""

    def __init__(self, folder: Path, run: WatchedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        own = folder / f"{run.name}-{run.run_id[:8]}"
        self._known = _read_scalars(own)
        is_new = not own.exists()
        self._writer = SummaryWriter(str(own))
        self.where = f"tensorboard --logdir {printable_path(str(folder))}"
        if is_new:
            for summary in hparams(dict(run.options), dict.fromkeys(MAIN, 0.0)):
                self._writer._get_file_writer().add_summary(summary)
        self._writer.flush()

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        self._add({f"{phase}/{name}": value for name, value in figures.items()}, step=epoch)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        for name, text in words.items():
            self._writer.add_text(name, text)
        self._add(figures, step=0)

    def close(self, *, finished: bool) -> None:
        self._writer.close()

    def _add(self, figures: Mapping[str, float], *, step: int) -> None:
        for tag, value in figures.items():
            if (tag, step) not in self._known:
                self._known.add((tag, step))
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()


def open_tracker(place: str | None, run: WatchedRun) -> TensorBoardTracker:
    """Begin or go on in the folder `place`."""
    folder = Path(place or ".")
    require_outside(folder, data=run.data, flag="--log tensorboard:")
    try:
        return TensorBoardTracker(folder, run)
    except OSError as error:
        shown = printable_path(str(folder))
        raise InputError(f"--log tensorboard:{shown}: cannot be written: {error.strerror or error}") from error


def _read_scalars(folder: Path) -> set[tuple[str, int]]:
    """(tag, step) of all that the folder's event files have, but for what a kill tore off."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return {
        (value.tag, event.step)
        for file in sorted(folder.glob("events.out.tfevents.*"))
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
