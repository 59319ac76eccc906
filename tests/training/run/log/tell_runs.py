"""Trains small runs that are told to every kind of store, and writes what the stores have of them.

Its arguments are DATA VAL CACHE STORE RUNS, and `--kill` for the one that is killed in epoch 3 alone.
In a process of its own: the clients hook into interpreters, and wandb's into their environment too.
"""

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.training.conftest import make_config, make_machine
from tests.training.run.log.stores import make_target, read_store
from training.options.log_targets import KINDS
from training.run.loggers import open_loggers
from training.run.phases import EpochReport, Watcher
from training.run.train import train


def main() -> None:
    data, val, cache, store, runs = map(Path, sys.argv[1:6])

    def tell(name: str, *, also: Watcher | None = None, resume: bool = False, **changes: Any) -> None:
        config = make_config(**({"label_noise": "uniform:0.25"} | changes))
        with open_loggers([make_target(kind, store) for kind in KINDS]) as loggers:
            train(data, runs / name, config=config, machine=make_machine(cache), val=val, resume=resume,
                  watcher=loggers.beside(also or Watcher()))  # fmt: skip

    if "--kill" in sys.argv:
        tell("killed", also=Watcher(on_epoch=_kill))
    tell("whole", holdout=True)
    tell("killed", resume=True)
    shutil.copytree(runs / "whole", runs / "later")
    document = json.loads((runs / "later" / "config.json").read_text())
    (runs / "later" / "config.json").write_text(json.dumps(document | {"run_id": "0123456789abcdef"}))
    tell("later", resume=True, holdout=True)
    found = {kind: [asdict(stored) for stored in read_store(kind, store)] for kind in KINDS}
    (runs / "stores.json").write_text(json.dumps(found))


def _kill(report: EpochReport) -> None:
    if (report.phase, report.epoch) == ("embedding", 3):
        os.kill(os.getpid(), signal.SIGKILL)
