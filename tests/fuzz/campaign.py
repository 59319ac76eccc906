"""A campaign: cases drawn from a seed until the time is over, their outcomes counted, what failed kept as a file."""

import random
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Protocol

MOST_FAULTS = 10  # after so many a campaign ends: they tend to be one


class FaultError(Exception):
    """What must not happen, and the input that makes it happen.

    Attributes:
        content: the input.
        suffix: of a file that holds it.
    """

    def __init__(self, problem: str, *, content: bytes, suffix: str) -> None:
        super().__init__(problem)
        self.content, self.suffix = content, suffix


class Target(Protocol):
    def attack(self, chance: random.Random) -> str:
        """One case; a word for its outcome.

        Raises:
            FaultError: what must not happen happened.
        """

    def check(self) -> None:
        """What needs to hold only after many cases; raises as `attack`."""


class Fuzzer(Protocol):
    """Makes a target to attack, in a folder of its own."""

    def __call__(self, folder: Path) -> AbstractContextManager[Target]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What a campaign found.

    Attributes:
        name: of the fuzzer.
        seed: that draws the same cases again.
        seconds: that it took.
        outcomes: how often each was met.
        faults: for each fault the number of its case, what it is, and the file with the input.
    """

    name: str
    seed: int
    seconds: float
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str, Path]] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{outcome} {number}" for outcome, number in self.outcomes.most_common())
        lines = [f"{self.name}: {self.outcomes.total()} cases in {self.seconds:.0f} s, seed {self.seed}: {counts}"]
        for number, problem, path in self.faults:
            lines += [
                f"  FAULT in case {number}: {problem}",
                f"    input: {path}",
                f"    again: python -m tests.fuzz --only {self.name} --seed {self.seed} --first {number} --cases 1",
            ]
        return "\n".join(lines)


def run_campaign(
    name: str,
    fuzzer: Fuzzer,
    *,
    seed: int,
    work: Path,
    keep: Path,
    seconds: float | None = None,
    cases: int | None = None,
    first: int = 0,
) -> Report:
    """Attack until the time or the cases are over, whichever comes first.

    Args:
        name: of the fuzzer, which has a part in what is drawn.
        fuzzer: makes the target.
        seed: of all cases; each is drawn by itself, from it and its own number.
        work: an empty folder for the target.
        keep: gets the inputs that fail; made when there is one.
        seconds, cases: the most; one of them at least.
        first: number of the first case.
    """
    assert seconds is not None or cases is not None, "it would never end"
    faults, outcomes = list[tuple[int, str, Path]](), Counter[str]()
    started = time.monotonic()
    with fuzzer(work) as target:
        begun = time.monotonic()
        for number in islice(count(first), cases):
            if (seconds is not None and time.monotonic() - begun > seconds) or len(faults) >= MOST_FAULTS:
                break
            try:
                outcomes[target.attack(random.Random(f"{seed} {name} {number}"))] += 1
                if number % 50 == 49:
                    target.check()
            except FaultError as fault:
                outcomes["FAULT"] += 1
                faults.append((number, str(fault), _keep(fault, keep / f"{name}-{seed}-{number}{fault.suffix}")))
        try:
            target.check()
        except FaultError as fault:
            faults.append((number, str(fault), _keep(fault, keep / f"{name}-{seed}-end{fault.suffix}")))
    return Report(name, seed, time.monotonic() - started, outcomes, faults)


def _keep(fault: FaultError, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fault.content)
    return path
