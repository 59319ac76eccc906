"""Commands that are killed at random moments and run again end as if nothing had happened; more of it: tests.kills."""

import os
import subprocess
import sys

import pytest

from tests.index.galleries import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--first", "1"]], ids=["one output", "two outputs"])
def test_killed_commands_run_again_end_as_if_nothing_had_happened(
    more: list[str], request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--shuffle") or 3
    words = [sys.executable, "-m", "tests.kills", "--kills", "15", "--seed", str(seed), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 mismatches" in ran.stdout
