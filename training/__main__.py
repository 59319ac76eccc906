"""`python -m training` is the command `retrieval train`, which torchrun can start: `torchrun -m training ...`."""

import sys

from index.commands.exit_codes import RESUME, run_command
from training.commands import train


def run() -> None:
    """The module as a program."""
    sys.exit(run_command(train, prog_name="python -m training", how_to_go_on=lambda _: RESUME))


if __name__ == "__main__":
    run()
