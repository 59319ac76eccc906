"""Processes of a benchmark that run alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_alone(
    module: str, *words: str, settings: Mapping[str, Any], failing: str, wait_policy: str | None = None
) -> dict[str, Any]:
    """Run a module with some words; its document.

    Args:
        failing: what is said where it fails, `{}` being its exit status.
        wait_policy: as `choose_wait_policy` takes it.

    Raises:
        SystemExit: it failed; its message is on stderr.
    """
    command, given = [sys.executable, "-m", module, *words], json.dumps(settings, default=str)
    environment = choose_wait_policy(wait_policy)
    finished = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, env=environment)
    if finished.returncode:
        sys.exit(failing.format(finished.returncode))
    document: dict[str, Any] = json.loads(finished.stdout)
    return document


def choose_wait_policy(wait_policy: str | None) -> dict[str, str]:
    """The environment with OMP_WAIT_POLICY, which OpenMP reads before our code runs; None: as is, `unset`: without.

    How long threads spin is then OpenMP's own choice too.
    """
    environment = dict(os.environ)
    if wait_policy is not None:
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            environment.pop(name, None)
        if wait_policy != "unset":
            environment["OMP_WAIT_POLICY"] = wait_policy
    return environment
