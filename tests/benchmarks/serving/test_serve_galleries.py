"""The galleries that are served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving.serve_galleries import describe_gallery, perturb, publish_vectors
from index.gallery.gallery import Gallery
from index.model.embedder import Embedder


def unit_rows(count: int, width: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("count", [5, 99, 100, 250])
def test_a_gallery_of_vectors_has_each_of_them_once(count: int, tmp_path: Path, tiny_model: Path) -> None:
    vectors = unit_rows(count, 16)
    contract = Embedder(tiny_model).contract
    publish_vectors(vectors, tmp_path / "gallery", tmp_path / "making", model=tiny_model, contract=contract)
    gallery = Gallery.open(tmp_path / "gallery", model_path=tiny_model)
    assert gallery.count == count
    np.testing.assert_array_equal(gallery.labelled_vectors()[0], vectors)
    assert not (tmp_path / "making").exists()
    best = gallery.search(vectors[3], k=1)[0]
    assert best.id == gallery.ids[3]


def test_clients_and_peers_get_ids_vectors_and_paths_in_the_same_order(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    contract = Embedder(tiny_model).contract
    publish_vectors(
        unit_rows(250, 16), tmp_path / "gallery", tmp_path / "making", model=tiny_model, contract=contract
    )
    served = describe_gallery(
        tmp_path / "gallery", tmp_path, model=tiny_model, photos=image_folder, what="vectors"
    )
    gallery, ids = Gallery.open(tmp_path / "gallery"), np.load(served.ids)
    vectors, paths = np.load(served.vectors), json.loads(served.paths.read_text())
    assert len(ids) == len(vectors) == len(paths) == 250
    np.testing.assert_array_equal(gallery.vector(int(ids[200])), vectors[200])
    assert gallery.image(int(ids[200])).path == paths[200]
    assert np.load(served.queries).shape == (250, 16)
    assert len(served.photos) == 15
    assert served.describe() == {"what": "vectors", "images": 250, "width": 16, "index": "Flat"}


def test_queries_are_unit_rows_near_members_and_none_of_them() -> None:
    vectors = unit_rows(3000, 64)
    queries = perturb(vectors, seed=0)
    assert queries.shape == (2000, 64)
    assert queries.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-6)
    nearest = (queries @ vectors.T).max(axis=1)
    assert nearest.min() > 0.7
    assert nearest.max() < 0.999
