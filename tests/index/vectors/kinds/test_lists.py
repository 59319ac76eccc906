"""Centres of lists are found on the CPU where a GPU has no room."""

from __future__ import annotations

import logging

import faiss
import numpy as np
import pytest

from index.vectors.kinds.lists import Lists
from tests.index.vector_sources import VectorSource


def _train() -> np.ndarray:
    """The centres of eight lists."""
    index = faiss.index_factory(16, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    Lists().train(index, VectorSource(width=16).draw(400, seed=0)[0])
    assert index.is_trained
    assert index.clustering_index is None
    return index.quantizer.reconstruct_n(0, 8)


def test_a_gpu_without_room_is_told_of_and_the_cpu_finds_the_same_centres(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("cudaMalloc error out of memory [2]")

    plain = _train()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", refuse, raising=False)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(_train(), plain)
    assert "faiss cannot find centres on the GPU (cudaMalloc error out of memory [2]): the CPU does" in caplog.text
