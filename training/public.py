"""Training for Python programs. Imports nothing heavy before it works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path, make_config, option_names
from index.errors import InputError, missing_imports_as_dependency_errors
from training.options.machine import Machine

if TYPE_CHECKING:
    from training.options.config import TrainConfig
    from training.run.phases import Watcher


def train(
    data: str | Path,
    out: str | Path,
    *,
    val: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    rank_timeout: float = 600.0,
    config: TrainConfig | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train an image embedding on labelled images, some with wrong labels, into the run folder `out`.

    Args:
        data: a folder of class folders, a CSV or Parquet file (path,label), a gallery, or a benchmark's download.
        out: the run folder; new, or begun with the same options where `resume`.
        val: labelled images for evaluation.
        resume: continue an interrupted run; a finished one returns its report.
        rank_timeout: under torchrun, seconds that a step waits for other processes.
        config: options as `training.options.resolve` gives them, in place of `options`, but those of `Machine`.
        **options: as in `retrieval train`, with `_` for `-` (and `lambda_`, `for_`): the fields of `Machine` (`device`,
            `workers`, `cache`, ...), of `TrainConfig` and the configs in it (`weights`, `method`, `epochs`, ...).

    Returns the report, as in the run folder's report.json.

    Under torchrun each process calls it alike and gets the same report; only rank 0 writes and calls the watcher.
    """
    from training.options.resolve import resolve

    given = {name: options.pop(name) for name in option_names(Machine) if name in options}
    if "weights" in options:
        options["weights"] = str(options["weights"])
    if config is None:
        config = resolve(**options)
    elif options:
        raise InputError(f"{next(iter(options))}: belongs into the config that is given")
    data, out = as_path(data, "data"), as_path(out, "out")
    val = None if val is None else as_path(val, "val")
    with missing_imports_as_dependency_errors("training"):
        from training.run.distributed import ProcessRank, join_processes, require_same_start
        from training.run.train import train as run_training

        machine = make_config(Machine, given)
    with join_processes(ProcessRank.read(), machine=machine, wait_s=rank_timeout) as team:
        given = {"DATA": data, "--out": out, "--val": val, "--resume": resume, "--precision": machine.precision}
        given["--device"] = machine.device.type
        require_same_start(team, config=config, others={name: str(value) for name, value in given.items()})
        options = {"config": config, "machine": machine, "val": val, "resume": resume, "watcher": watcher}
        return team.run_on_rank0(lambda: run_training(data, out, **options))
