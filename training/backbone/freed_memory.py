"""Keeping what large tensors leave free: a network asks for the same hundreds of megabytes in every batch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from index.images.decode import return_memory

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_KEEP = (1 << 31) - 1
_GIVE_BACK = 32 << 20  # what glibc comes to by itself where large blocks are freed
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Have the C library keep freed blocks of any size for the next ones; at the end it gives all of them back.

    glibc maps every block over 32 MB anew and unmaps it when it is freed, so that the kernel clears each page of every
    large activation again: more than half of MobileNetV2's forward pass on 32 images, and a quarter of a training
    step. Other C libraries, and who has set glibc's thresholds himself, are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or any(os.environ.get(name) for name in _OWN_SETTINGS):
        yield
        return
    for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        mallopt(threshold, _KEEP)
    try:
        yield
    finally:
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            mallopt(threshold, _GIVE_BACK)
        return_memory()
