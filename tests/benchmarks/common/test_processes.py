from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from benchmarks.common.processes import add_memory, fit_line, read_memory, sampling

MIB = 2**20


def test_memory_of_processes_below_this_one_is_sampled_and_its_own_is_not() -> None:
    hold = "import sys; data = b'x' * (64 << 20); print(len(data), flush=True); sys.stdin.read()"
    own, samples = psutil.Process(), []
    others = add_memory(own)["anonymous"]  # of what other tests have started
    with sampling(lambda: samples.append(add_memory(own)["anonymous"]), every_s=0.02):
        child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        seen = len(samples)
        while len(samples) < seen + 2:
            time.sleep(0.01)
        child.communicate()
    assert 64 * MIB < samples[seen + 1] - others < 128 * MIB


def test_the_memory_of_a_process_is_its_own_and_that_of_files() -> None:
    memory = read_memory()
    assert MIB < memory["anonymous"] < memory["resident"] == memory["anonymous"] + memory["mapped"]


def test_a_line_has_a_slope_and_its_error_and_needs_three_places() -> None:
    places = np.array([0.0, 1.0, 2.0, 3.0])
    assert fit_line(places, 2 * places + 1) == pytest.approx({"slope": 2, "standard_error": 0})
    assert fit_line(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) is None
