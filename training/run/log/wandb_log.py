"""A training in Weights & Biases, online or, by WANDB_MODE=offline, in files for `wandb sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from index.errors import InputError
from training.run.log.loggers import WatchedRun

_PROJECT = "retrieval"


class WandbTracker:
    """Charts `PHASE/FIGURE` over `PHASE/epoch`; the run has the run folder's id, there as here.

    Online a run that goes on is asked how far it came. Offline, where wandb's writer may lose what a kill finds in its
    memory, every start writes all from the first epoch: the newest of the run's files is whole.
    """

    def __init__(self, place: str | None, run: WatchedRun) -> None:
        import wandb

        entity, _, project = (place or os.environ.get("WANDB_PROJECT") or _PROJECT).rpartition("/")
        # Nothing but what is told: no standard output, no code, no command line, no figures of the machine.
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        self._run = wandb.init(
            project=project, entity=entity or None, id=run.run_id, name=run.name, resume="allow", reinit="create_new",
            config=dict(run.options), settings=settings,
        )  # fmt: skip
        self._next = self._run.step
        self._phases = set[str]()
        self.where = f"wandb sync {self._run.settings.sync_dir}" if self._run.offline else str(self._run.url)

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        if phase not in self._phases:
            self._phases.add(phase)
            self._run.define_metric(f"{phase}/epoch", hidden=True)
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/epoch")
        if number >= self._next:
            told = {f"{phase}/{name}": value for name, value in figures.items()}
            self._run.log({**told, f"{phase}/epoch": epoch}, step=number)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        self._run.summary.update({**figures, **words})

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def open_tracker(place: str | None, run: WatchedRun) -> WandbTracker:
    """Begin or go on in the project `place`, `PROJECT` or `ENTITY/PROJECT`; None is what WANDB_PROJECT says."""
    import wandb

    shown = "wandb" if place is None else f"wandb:{place}"
    advice = "`wandb login` once, or set WANDB_MODE=offline and send it later with `wandb sync`"
    try:
        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise InputError(f"--log {shown}: nobody has logged in to wandb here; {advice}")
        return WandbTracker(place, run)
    except wandb.Error as error:
        raise InputError(f"--log {shown}: {error}; {advice}") from error
