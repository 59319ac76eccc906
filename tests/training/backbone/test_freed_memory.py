"""Large tensors find their pages where the last ones left them, and nothing stays with the process in the end."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
# In a process of its own: what others have freed before lies about in this one.
MEASURES = """
import json, resource
from pathlib import Path
import torch
from training.backbone.extract import keep_freed_memory

def fill(times):
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(16 << 20)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

fill(1)
found = {"before": resident_mb(), "faults outside": fill(10)}
with keep_freed_memory():
    fill(20)  # aligned blocks need a little more than they leave: the first ones find no place
    found |= {"faults inside": fill(10), "inside": resident_mb()}
print(json.dumps(found | {"after": resident_mb()}))
"""


def _measure(**variables: str) -> dict[str, float]:
    command = [sys.executable, "-c", MEASURES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **variables})
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_block_is_used_again_without_the_kernel_clearing_its_pages_and_given_back_at_the_end() -> None:
    found = _measure()
    assert found["faults inside"] < found["faults outside"] / 5
    assert found["inside"] > found["before"] + 50
    assert found["after"] < found["before"] + 20


@pytest.mark.slow
def test_who_has_set_the_thresholds_himself_is_left_alone() -> None:
    found = _measure(MALLOC_MMAP_THRESHOLD_="33554432")
    assert found["inside"] < found["before"] + 20
