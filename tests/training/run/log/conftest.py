"""Small runs that were told to every kind of store, and what the stores have of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.training.conftest import FinishedRun
from tests.training.run.log.stores import Stored


@dataclass(frozen=True, slots=True)
class ToldRuns:
    """The folder of the runs `whole`, `tried`, `interrupted`, `killed` and `later`, and the stores by kind and run."""

    folder: Path
    stores: dict[str, dict[str, Stored]]


@pytest.fixture(scope="package")
def told(finished_run: FinishedRun, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> ToldRuns:
    """Told by processes of their own, one of which was killed. Not to be written to."""
    store, runs = tmp_path_factory.mktemp("stores"), tmp_path_factory.mktemp("told")
    words = [str(path) for path in (finished_run.data, finished_run.val, cache, store, runs)]
    homes = ("HOME", "WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")
    environment = {**os.environ, "WANDB_MODE": "offline", **dict.fromkeys(homes, str(store))}
    for option, code in (["--kill"], -signal.SIGKILL), ([], 0):
        ran = subprocess.run(
            [sys.executable, "-m", "tests.training.run.log.tell_runs", *words, *option], capture_output=True, text=True,
            check=False, env=environment,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
    found = json.loads((runs / "stores.json").read_text())
    stores = {kind: [Stored(**one) for one in all_of_it] for kind, all_of_it in found.items()}
    for kind, all_of_it in stores.items():
        assert len(all_of_it) == len({one.name for one in all_of_it}) == 5, kind
    return ToldRuns(runs, {kind: {one.name: one for one in all_of_it} for kind, all_of_it in stores.items()})
