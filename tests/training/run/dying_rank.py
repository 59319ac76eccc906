"""`python -m training` whose rank 1 dies, hangs or fails in the second epoch of the network, by its first argument."""

import os
import signal
import sys
from typing import Any

from index.errors import InputError
from training.__main__ import run
from training.run.finetuning.fit import FinetuneLoop

STEP = 4  # of three an epoch


def _fail(how: str) -> None:
    if how == "fail":
        raise InputError("the disk of this machine is gone")
    os.kill(os.getpid(), {"die": signal.SIGKILL, "hang": signal.SIGSTOP}[how])


def main() -> None:
    how, step = sys.argv.pop(1), FinetuneLoop.step

    def step_or_fail(fit: FinetuneLoop, rows: Any, views: Any, number: int, **others: Any) -> Any:
        if number == STEP:
            _fail(how)
        return step(fit, rows, views, number, **others)

    if os.environ["RANK"] == "1":
        FinetuneLoop.step = step_or_fail  # type: ignore[method-assign]
    run()


if __name__ == "__main__":
    main()
