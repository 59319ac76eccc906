"""Budget of fine-tuning: epochs and time, by the clock of rank 0."""

import math
import time
from collections.abc import Callable
from typing import Any

from training.options.finetuning import FinetuneConfig, parse_time
from training.run.distributed import current_team
from training.run.phases import FINETUNING, TrainingJob

_OBSERVED = 0.05  # share of a budget after which the speed of a step of preparation is known
MOST_EVALUATIONS = 10  # or checkpoints, of a training with a number of epochs
SAMPLED_FROM = 2000  # images; fewer fit into minutes
SAMPLE = "speeds.json"
HEADS_AT_END = 3  # fitted after training: for the comparison, its posteriors, and the export
OnImages = Callable[[str, int, int], None]


def may_sample(job: TrainingJob, count: int) -> bool:
    """Whether fine-tuning may take a sample of this many images: in one process, and as it began."""
    if (job.run.path / SAMPLE).exists() or job.run.checkpoint(FINETUNING).exists():
        return (job.run.path / SAMPLE).exists()
    if count < SAMPLED_FROM or current_team().size > 1:
        return False
    return job.config.finetuning.limits(count, on_cpu=job.machine.device.type == "cpu")[1] is not None


class OutOfTimeError(Exception):
    """Preparation that would use up the time budget, in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"preparation would take {seconds:.0f} s")
        self.seconds = seconds


class Budget:
    """Most epochs and most time of fine-tuning `images` training images.

    The time begins with the object, or at `begun` of `time.perf_counter`. Some of it is reserved for the evaluation
    after training. Learning rates follow the share of time since the first step: a slow preparation does not cut the
    warm-up.

    Attributes:
        epochs: None: any number.
        text: the time, as in --time-budget; None: any.
        reserved_s: seconds for heads after training, once known.
        prepared_s: seconds before the first step, including those of an interrupted run.
        elapsed: share of the time from the first step to the deadline, or of the epochs if that is larger.
    """

    def __init__(self, options: FinetuneConfig, *, images: int, on_cpu: bool, begun: float | None = None) -> None:
        self.epochs, self.text = options.limits(images, on_cpu=on_cpu)
        self.limit_s = None if self.text is None else parse_time(self.text)
        self.reserved_s = self.prepared_s = self.elapsed = 0.0
        self._images = images
        self._begun = self._first_step = self._deadline = time.perf_counter() if begun is None else begun
        self._used = 0.0  # share of the time that an interrupted run had used

    @property
    def used_s(self) -> float:
        """Seconds since the beginning, including those of an interrupted run."""
        return time.perf_counter() - self._begun

    def limit_preparation(self, on_images: OnImages) -> OnImages:
        """Callback that raises `OutOfTimeError` where a step of preparation would not end in time."""
        if self.limit_s is None:
            return on_images
        limit_s, first = self.limit_s - self.reserved_s, dict[str, tuple[float, int]]()

        def note(step: str, done: int, total: int) -> None:
            on_images(step, done, total)
            now = ends = time.perf_counter()
            start, before = first.setdefault(step, (now, done))
            if done > before and now - start > _OBSERVED * limit_s:
                ends += (total - done) * (now - start) / (done - before)
            if ends - self._begun > limit_s:
                raise OutOfTimeError(ends - self._begun)

        return note

    def explain(self, end: OutOfTimeError) -> str:
        """Reason why nothing is fine-tuned."""
        return (
            f"of --time-budget {self.text} preparation would take {end.seconds:.0f} s and the comparison at the end "
            f"{self.reserved_s:.0f} s, so nothing is fine-tuned: train anew with --time-budget "
            f"{math.ceil((2 * end.seconds + self.reserved_s) / 60)}m or more"
        )

    def resume(self, state: dict[str, Any]) -> None:
        """Continue after an interruption, from `pack`."""
        self._begun -= state["used_s"]
        self._used = state["share"]

    def pack(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"used_s": self.used_s, "share": 0.0 if self.limit_s is None else self._share()}

    def start_clock(self, *, epoch: int, evaluation_s: float) -> str | None:
        """Begin with the first step after `epoch` epochs; returns a note for the user where little time is left.

        `evaluation_s` is the time that the evaluation after training will take, without heads.
        """
        self._first_step = time.perf_counter()
        self.prepared_s = self._first_step - self._begun
        if self.limit_s is None:
            return None
        after = evaluation_s + self.reserved_s
        self._deadline = self._begun + self.limit_s - after
        self.update(epoch * self._images)
        left = self._deadline - self._first_step
        if left >= self.prepared_s or epoch > 0:
            return None
        ends = f"{left:.0f} s are left to train" if left > 0 else "nothing is fine-tuned"
        return (
            f"fine-tuning: preparation took {self.prepared_s:.0f} s of --time-budget {self.text}, and comparing the "
            f"result will take {after:.0f} s, so {ends}: train anew with --time-budget "
            f"{math.ceil((2 * self.prepared_s + after) / 60)}m or more"
        )

    def update(self, done: int) -> None:
        """Set `elapsed` after `done` images of all epochs; all processes call this."""
        if self.limit_s is not None:
            of_epochs = 0.0 if self.epochs is None else done / (self.epochs * self._images)
            self.elapsed = max(of_epochs, current_team().run_on_rank0(self._share))

    def _share(self) -> float:
        """Elapsed share of the time."""
        now = time.perf_counter()
        if now >= self._deadline:
            return 1.0
        return self._used + (1 - self._used) * (now - self._first_step) / (self._deadline - self._first_step)

    def foresee(self, done: int, planned: int) -> int:
        """Planned total, or its estimate under a time budget."""
        return planned if self.limit_s is None else max(done, round(done / self.elapsed))

    def at_least(self, epochs: int) -> int:
        """Epochs between two evaluations or checkpoints; more where few images take many epochs."""
        return max(epochs, (self.epochs or 0) // MOST_EVALUATIONS)

    def ended_by(self, epoch: int) -> str | None:
        """`epochs` or `time`, once training has to end after `epoch` epochs."""
        if self.epochs is not None and epoch >= self.epochs:
            return "epochs"
        return "time" if self.elapsed >= 1 else None
