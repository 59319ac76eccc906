"""What Python programs call of `training`: one run, from images to a trained embedding. Loads nothing heavy before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path
from index.errors import naming_extras
from index.threads import usable_cores
from index.user_cache import user_cache
from training.options.log_targets import LogTarget, parse_log_targets

if TYPE_CHECKING:
    from training.options.config import TrainConfig
    from training.run.phases import Watcher


def default_cache() -> Path:
    """Where features are kept unless told otherwise: the user's cache folder."""
    return user_cache()


def train(
    data: str | Path,
    out: str | Path,
    *,
    weights: str | Path | None = None,
    val: str | Path | None = None,
    resume: bool = False,
    cache: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    workers: int | None = None,
    watcher: Watcher | None = None,
    rank_timeout: float = 600.0,
    log: str | Sequence[str] = (),
    **options: Any,
) -> dict[str, Any]:
    """Train an embedding that survives wrong labels, into the run folder `out`.

    Args:
        data: a folder of class folders, a CSV or Parquet file with the columns path,label, or a benchmark's download.
        out: the run folder; new, or begun with the same options where `resume`.
        weights: of the backbone: `pretrained`, `none` or a file; without them it is the backbone that comes with the
            package.
        val: other labelled images for Recall@K in the report.
        resume: go on with a run that was interrupted; a finished one gives its report again.
        cache: folder of backbone features, shared by runs; None is your cache folder.
        device: `auto`, `cpu` or `cuda`.
        precision: of the backbone pass: `auto`, `float32` or `bfloat16`.
        backend: what computes the features of a frozen backbone on a CPU: `torch`, `onnxruntime`, `openvino`, or `auto`
            for the first that is installed and agrees with torch, where there are images enough.
        workers: threads that decode; None is one for each core.
        watcher: told of progress.
        rank_timeout: seconds that a step waits for other processes, where torchrun has started several.
        log: where else the training can be watched: `tensorboard:DIR`, `mlflow[:URI]`, `wandb[:PROJECT]`, one or more.
        **options: as `retrieval train` has them, with `_` for `-` (and `lambda_`): `method`, `epochs`,
            `embedding_dim`, ...; the default recipe gives the others, or the paper's with `recipe="paper"`.

    Returns:
        The report, as the run folder's report.json has it: Recall@K beside the untrained baselines, and the trial.

    Raises:
        InputError: data, weights or options that cannot be used, or that the method does not use.
        RunError: a run folder in the way, missing, or begun with other options.
        MissingDependencyError: what `log` names is not installed.

    Started by torchrun, each process calls it alike and gets the same report; rank 0 alone writes and tells a watcher.
    """
    from training.options.resolve import resolve

    asked = options if weights is None else {"weights": str(weights), **options}
    return train_resolved(
        as_path(data, "data"), as_path(out, "out"), config=resolve(**asked), asked=asked,
        val=None if val is None else as_path(val, "val"), resume=resume,
        cache=default_cache() if cache is None else as_path(cache, "cache"), device=device, precision=precision,
        backend=backend, workers=workers or usable_cores(), watcher=watcher, rank_timeout=rank_timeout,
        targets=parse_log_targets(log),
    )  # fmt: skip


def train_resolved(
    data: Path, out: Path, *, config: TrainConfig, asked: Mapping[str, Any], val: Path | None, resume: bool,
    cache: Path, device: str, precision: str, backend: str, workers: int, watcher: Watcher | None, rank_timeout: float,
    targets: Sequence[LogTarget],
) -> dict[str, Any]:  # fmt: skip
    """`train`, with options that are resolved; `asked` are those that were given."""
    with naming_extras("training"):
        from training.options.machine import Machine, resolve_device
        from training.run.log.loggers import open_loggers
        from training.run.phases import Watcher
        from training.run.processes import Place, join_processes, require_same_start
        from training.run.train import train as run_training

    machine = Machine(cache, resolve_device(device), workers, precision=precision, backend=backend)
    watcher = watcher or Watcher()

    def run() -> dict[str, Any]:
        with open_loggers(targets, tell=watcher.on_note) as loggers:
            return run_training(
                data, out, config=config, asked=asked, machine=machine, val=val, resume=resume,
                watcher=watcher.beside(loggers),
            )  # fmt: skip

    with join_processes(Place.read(), machine=machine, wait_s=rank_timeout) as team:
        given = {"DATA": data, "--out": out, "--val": val, "--resume": resume, "--precision": precision}
        given |= {"--backend": backend, "--device": machine.device.type}
        require_same_start(team, config=config, others={name: str(value) for name, value in given.items()})
        return team.first_does(run)
