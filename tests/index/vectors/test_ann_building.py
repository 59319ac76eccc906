import json
import logging
from pathlib import Path

import faiss
import numpy as np
import pytest

from index.errors import InputError
from index.vectors.ann_building import build_ann_index, count_held_out, find_reduced_axes
from index.vectors.ann_config import AnnConfig
from index.vectors.ann_index import AnnIndex, choose_held_out
from index.vectors.kinds import KINDS
from index.vectors.search import VectorSearch
from index.vectors.shards import VectorRows
from index.vectors.stored_rows import StoredRows
from tests.index.vector_sources import VectorSource, exact_scores, split_rows, spread_ids, unit

pytestmark = pytest.mark.usefixtures("one_core")
ROWS, WIDTH = 2000, 32
SOURCE = VectorSource(width=WIDTH, decay=0.3)


@pytest.fixture(scope="module")
def shards() -> list[VectorRows]:
    vectors, _ = SOURCE.draw_gallery(ROWS, seed=6)
    return split_rows(vectors, spread_ids(ROWS), ends=[700])


def config(index_type: str, **options: object) -> AnnConfig:
    return AnnConfig(index_type=index_type, **{"recall_target": 0.9, **options})


@pytest.mark.parametrize("index_type", ["hnsw", "ivf"])
def test_those_that_ask_come_into_the_index_after_they_have_asked(
    shards: list[VectorRows], index_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, seen = StoredRows.of(shards), []

    def watch(stored: StoredRows, index: AnnIndex, queries: np.ndarray, **options: object) -> dict[str, object]:
        """What is measured, and what the index holds at that moment."""
        held = index.faiss_index.ntotal
        _, found = index.search(queries, k=1, effort=index.most_effort)
        seen.append((held, index.rows.copy(), queries, found[:, 0]))
        return {
            "parameters": {"efSearch": 10, "nprobe": 1, "candidates": 10},
            "costs": {"rows_per_effort": 1, "rows_per_candidate": 1},
        }

    monkeypatch.setattr("index.vectors.ann_building.tune_ann", watch)
    described = build_ann_index(shards, config=config(index_type), folder=tmp_path)
    [(held, rows, queries, nearest)] = seen
    held_out = choose_held_out(ROWS, count_held_out(ROWS))
    assert len(np.unique(held_out)) == 100
    assert held == len(rows) == ROWS - len(held_out)
    assert not np.isin(held_out, rows).any()
    assert np.array_equal(queries, stored.gather(held_out))
    assert not np.isin(nearest, held_out).any()
    assert described["own_queries"] is True
    assert faiss.read_index(str(tmp_path / "index.faiss")).ntotal == ROWS
    search = VectorSearch.open(shards, folder=tmp_path, described=described)
    assert sorted(search.index.rows.tolist()) == list(range(ROWS))
    every = stored.gather(np.arange(ROWS))
    asking = every[::7]
    _, found = search.index.search(asking, k=100, effort=ROWS if index_type == "hnsw" else search.index.most_effort)
    exact = np.take_along_axis(exact_scores(asking, every), found, axis=1).max(axis=1)
    assert np.mean(exact >= 1 - 1e-6) > 0.99  # every number stands for its own row


def test_a_flat_index_has_no_file(shards: list[VectorRows], tmp_path: Path) -> None:
    described = build_ann_index(shards, config=config("auto"), folder=tmp_path)
    assert described["type"] == "flat"
    assert described["recall_at_10"] == 1.0
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(described)) == described
    search = VectorSearch.open(shards, folder=tmp_path, described=described)
    assert search.index is None


@pytest.mark.parametrize(("index_type", "count"), [("hnsw", 1), ("ivf", 999), ("hnsw", 1000), ("ivf", 1000)])
def test_few_vectors_even_if_all_are_the_same_can_be_searched(index_type: str, count: int, tmp_path: Path) -> None:
    for vectors in (SOURCE.draw(count, seed=8)[0], np.repeat(SOURCE.draw(1, seed=1)[0], count, axis=0)):
        shards = split_rows(vectors, spread_ids(count), ends=[])
        (folder := tmp_path / str(vectors[-1, 0])).mkdir()
        described = build_ann_index(shards, config=config(index_type), folder=folder)
        assert described["type"] == (index_type if count >= 1000 else "flat")
        scores, found = VectorSearch.open(shards, folder=folder, described=described).search(vectors[:3], k=5)
        assert (np.isfinite(scores).sum(axis=1) == min(5, count)).all()
        assert all(len(set(row.tolist())) == len(row) for row in found[:, : min(5, count)])
        assert np.mean(scores[:, 0] >= 1 - 1e-6) >= 2 / 3
        (again := tmp_path / f"again{vectors[-1, 0]}").mkdir()  # where one thread writes the same files
        build_ann_index(shards, config=config(index_type), folder=again)
        assert [file.read_bytes() for file in again.iterdir()] == [file.read_bytes() for file in folder.iterdir()]


def test_no_memory_is_an_error_before_anything_is_written(shards: list[VectorRows], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--memory-limit"):
        build_ann_index(shards, config=config("ivf", memory_limit="1kB"), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_axes_are_found_where_few_hold_nearly_all() -> None:
    def store(vectors: np.ndarray) -> StoredRows:
        return StoredRows.of(split_rows(vectors, spread_ids(len(vectors)), ends=[]))

    random = np.random.default_rng(0)
    assert find_reduced_axes(store(unit(random.normal(size=(1000, 160))))) is None  # all numbers weigh the same
    narrow = unit(random.normal(size=(1000, 128)) * 0.5 ** np.arange(128))
    assert find_reduced_axes(store(narrow)) is None
    vectors = VectorSource(width=160, decay=1.0).draw(1000, seed=0)[0]
    axes = find_reduced_axes(store(vectors))
    assert axes.shape == (32, 160)
    assert axes.dtype == np.float32
    assert np.allclose(axes @ axes.T, np.eye(32), atol=1e-5)
    held = ((vectors @ axes.T) ** 2).sum() / (vectors**2).sum()
    best = np.linalg.svd(vectors.astype(np.float64), compute_uv=False)
    assert held >= 0.85
    assert held == pytest.approx((best[:32] ** 2).sum() / (best**2).sum(), abs=1e-4)


def _train() -> np.ndarray:
    """The centres of eight lists."""
    index = faiss.index_factory(16, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    KINDS["ivf"].train(index, VectorSource(width=16).draw(400, seed=0)[0])
    assert index.is_trained
    assert index.clustering_index is None
    return index.quantizer.reconstruct_n(0, 8)


def test_the_cpu_replaces_a_full_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("cudaMalloc error out of memory [2]")

    plain = _train()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", refuse, raising=False)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(_train(), plain)
    assert "faiss cannot train on the GPU (cudaMalloc error out of memory [2]): the CPU does" in caplog.text
