"""The callbacks by which long work reports its progress."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (done, total); a total of 0 is not known."""

StepProgress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""

BeginStep = Callable[[str], Progress]
"""Called with the name of a step of longer work when it begins; gives what is called while it lasts."""


def no_progress(*_: object) -> None:
    """Ignore progress, also that of steps."""


def no_steps(name: str) -> Progress:
    """Ignore steps."""
    return no_progress
