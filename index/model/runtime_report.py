"""What runs a model on this machine: the runtimes, what each gives, which one is chosen, and the threads it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.model.backends.choice import LEAST_AGREEMENT, choose_backend
from index.model.backends.measuring import Measured, measure_installed
from index.model.backends.names import NAMES, VARIABLE
from index.model.backends.registry import open_backend
from index.model.seal import SealedModel, read_sealed
from index.threads import usable_cores

_ALLOCATOR = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def report_runtimes(path: Path, *, asked: str | None = None, again: bool = False) -> dict[str, Any]:
    """Measure every runtime that is installed with a model, or take what was measured before.

    Args:
        path: of the model.
        asked: the runtime that would be asked for where nobody names one.
        again: measure, whatever was measured before.

    Returns:
        `runtimes`: of every name what `Measured` has, or None where it is not installed or does not take the model;
        `chosen`: the name, None where what is named is refused, and why; `threads` and `allocator`: what is set.

    Raises:
        ModelFileError: the model cannot be used.
        InputError: a runtime is asked for that there is not.
        MissingDependencyError: the usual runtime is not installed.
    """
    model = read_sealed(path)
    measured = measure_installed(model, again=again)
    runs, why = _choose(model, asked, measured=measured)
    return {
        "runtimes": {
            name: None
            if (one := measured.get(name)) is None
            else {
                "version": one.version,
                "precision": one.precision,
                "images_per_s": one.images_per_s,
                "agreement": one.agreement,
                "agrees": one.agreement >= LEAST_AGREEMENT,
            }
            for name in NAMES
        },
        "chosen": {"name": runs, "why": why},
        "threads": {
            "cores": usable_cores(),
            "waiting": "asleep" if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE" else "spinning",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "allocator": {name: os.environ.get(name) for name in _ALLOCATOR},
    }


def _choose(model: SealedModel, asked: str | None, *, measured: Mapping[str, Measured]) -> tuple[str | None, str]:
    """The name of what runs the model, None where what is named computes another one, and why."""
    try:
        choice = choose_backend(model, asked)
    except InputError as error:
        if (asked or os.environ.get(VARIABLE)) not in measured:  # there is no runtime of that name
            raise
        return None, str(error)
    runs = choice.name if choice.name in measured else open_backend(model, name=choice.name).name
    return runs, choice.why if runs == choice.name else f"{choice.name} is named, but cannot be had here"


def tell_runtimes(report: Mapping[str, Any]) -> list[str]:
    """The lines of a report for people."""
    lines = []
    for name, one in report["runtimes"].items():
        mark = "*" if report["chosen"]["name"] == name else " "
        if one is None:
            lines.append(f"{mark} {name:<12} not installed here, or it does not take this model")
            continue
        agrees = "agrees" if one["agrees"] else "differs"
        lines.append(
            f"{mark} {name:<12} {one['version']}, {one['precision']}: {one['images_per_s']:,.0f} images/s, "
            f"{agrees} (cosine {one['agreement']:.4f} less the mean)"
        )
    chosen, threads = report["chosen"], report["threads"]
    lines.append(f"runs in {chosen['name'] or 'none'}: {chosen['why']}")
    own = f", OMP_NUM_THREADS={threads['OMP_NUM_THREADS']}" if threads["OMP_NUM_THREADS"] else ""
    lines.append(f"threads: {threads['cores']} cores, those that wait are {threads['waiting']}{own}")
    given = ", ".join(f"{name}={value}" for name, value in report["allocator"].items() if value)
    lines.append(
        f"allocator: {given}"
        if given
        else "allocator: the C library's own settings, which the runtimes here lose nothing by; training keeps what "
        "large tensors leave free"
    )
    return lines
