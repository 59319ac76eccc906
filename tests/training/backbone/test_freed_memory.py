"""Large tensors find their pages where the last ones left them, and nothing stays with the process in the end."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pytest
import torch

from training.backbone.freed_memory import keep_freed_memory

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
LARGE = 16 << 20  # numbers: 64 MB


def _fill(*, times: int) -> None:
    for _ in range(times):
        torch.ones(LARGE)


def _page_faults(*, times: int) -> int:
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    _fill(times=times)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_a_block_is_used_again_without_the_kernel_clearing_its_pages() -> None:
    outside = _page_faults(times=10)
    with keep_freed_memory():
        _fill(times=1)
        inside = _page_faults(times=10)
    assert inside < outside / 5


def test_what_was_kept_is_given_back_at_the_end() -> None:
    before = _resident_mb()
    with keep_freed_memory():
        _fill(times=1)
        assert _resident_mb() > before + 50
    assert _resident_mb() < before + 20


def test_afterwards_large_blocks_are_given_back_at_once_as_before() -> None:
    with keep_freed_memory():
        _fill(times=1)
    before = _resident_mb()
    _fill(times=1)
    assert _resident_mb() < before + 20


def test_who_has_set_the_thresholds_himself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "33554432")
    before = _resident_mb()
    with keep_freed_memory():
        _fill(times=1)
        assert _resident_mb() < before + 20
