"""What runs a model on this machine: the runtimes, what each gives, which one is chosen, and the threads it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.model.backends.names import NAMES, VARIABLE
from index.model.backends.registry import (
    LEAST_AGREEMENT,
    choose_backend,
    compare_backend,
    installed_backends,
    open_backend,
)
from index.model.seal import read_sealed
from index.threads import usable_cores


def report_runtimes(path: Path, *, asked: str | None = None) -> dict[str, Any]:
    """Compare every installed runtime with the usual one on a model.

    Args:
        asked: the runtime that would be asked for where nobody names one.

    Returns:
        `runtimes`: of every name what `Compared` has, or None where it is not installed or does not take the model;
        `chosen`: the name, None where what is named is refused, and why; `threads`: what is set.

    Raises:
        ModelFileError: the model cannot be used.
        InputError: a runtime is asked for that there is not.
        MissingDependencyError: the usual runtime is not installed.
    """
    model, installed = read_sealed(path), installed_backends()
    compared = {name: compare_backend(model, name) if name in installed else None for name in NAMES}
    runs: str | None = None
    try:
        choice = choose_backend(model, asked)
    except InputError as error:
        if (asked or os.environ.get(VARIABLE)) not in NAMES:  # there is no runtime of that name
            raise
        why = str(error)
    else:
        runs = choice.name if compared[choice.name] else open_backend(model, name=choice.name).name
        why = choice.why if runs == choice.name else f"{choice.name} is named, but cannot be had here"
    return {
        "runtimes": {
            name: None if one is None else {**asdict(one), "agrees": one.agreement >= LEAST_AGREEMENT}
            for name, one in compared.items()
        },
        "chosen": {"name": runs, "why": why},
        "threads": {
            "cores": usable_cores(),
            "waiting": "asleep" if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE" else "spinning",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def tell_runtimes(report: Mapping[str, Any]) -> list[str]:
    """The lines of a report for people."""
    lines = []
    for name, one in report["runtimes"].items():
        mark = "*" if report["chosen"]["name"] == name else " "
        if one is None:
            lines.append(f"{mark} {name:<12} not installed here, or it does not take this model")
        else:
            agrees = "agrees" if one["agrees"] else "differs"
            found = f"{agrees} (cosine {one['agreement']:.4f} less the mean)"
            lines.append(f"{mark} {name:<12} {one['version']}, {one['precision']}: {found}")
    chosen, threads = report["chosen"], report["threads"]
    own = f", OMP_NUM_THREADS={threads['OMP_NUM_THREADS']}" if threads["OMP_NUM_THREADS"] else ""
    return [
        *lines,
        f"runs in {chosen['name'] or 'none'}: {chosen['why']}",
        f"threads: {threads['cores']} cores, those that wait are {threads['waiting']}{own}",
    ]
