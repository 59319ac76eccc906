from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from index.build import build_gallery
from index.embedder import Embedder
from index.errors import InputError
from index.evaluate import embed_folder, evaluate_gallery, evaluate_model, evaluate_queries
from index.gallery import Gallery
from index.metrics import score_retrieval
from tests.conftest import draw_folder, draw_image

KS = (1, 2, 4)


def test_a_gallery_and_its_model_on_the_same_folder_score_alike(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    (image_folder / "broken.jpg").write_bytes(b"x")
    build_gallery(model_path=tiny_model, folder=image_folder, out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    from_gallery = evaluate_gallery(gallery, ks=KS)
    from_model, skipped = evaluate_model(tiny_model, data=image_folder, ks=KS)
    assert from_gallery.to_json() == from_model.to_json()
    assert skipped == 1
    assert from_gallery.queries == 15
    vectors, labels, ids, _ = gallery.labelled_vectors()
    products = vectors @ vectors.T
    np.fill_diagonal(products, -2)
    assert from_gallery.recall[1] == np.mean(labels[products.argmax(axis=1)] == labels)
    assert len(ids) == 15


def test_queries_from_another_folder_lose_nothing_of_the_gallery(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    build_gallery(model_path=tiny_model, folder=image_folder, out=tmp_path / "g")
    queries = draw_folder(tmp_path / "queries", per_class=2)
    (queries / "yellow").mkdir()
    draw_image((220, 220, 30), seed=0).save(queries / "yellow" / "0.png")  # a label that the gallery lacks
    draw_image((220, 220, 30), seed=1).save(queries / "unlabelled.png")
    seen: list[tuple[int, int]] = []
    asked: list[tuple[int, int]] = []
    (queries / "broken.jpg").write_bytes(b"x")
    scores, skipped = evaluate_queries(
        Gallery.open(tmp_path / "g"),
        query=queries,
        ks=KS,
        progress=lambda done, total: seen.append((done, total)),
        scoring=lambda done, total: asked.append((done, total)),
    )
    assert skipped == 1
    assert asked[-1] == (6, 6)
    assert (scores.queries, scores.lone_queries) == (6, 1)
    assert scores.recall[1] == 1.0  # the same drawings are members: nothing was removed
    assert seen[-1] == (9, 9)
    from_model, _ = evaluate_model(tiny_model, data=image_folder, query=queries, ks=KS)
    assert from_model.to_json() == scores.to_json()


def test_evaluation_is_that_of_the_metrics_module(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    for name in ("1.png", "3.png"):  # some labels made wrong, so that the scores are no round numbers
        (image_folder / "red" / name).rename(image_folder / "blue" / f"red_{name}")
    build_gallery(model_path=tiny_model, folder=image_folder, out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    vectors, labels, ids, _ = gallery.labelled_vectors()
    expected = score_retrieval(
        vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=KS
    )
    scores = evaluate_gallery(gallery, ks=KS)
    assert scores.to_json() == expected.to_json()
    assert 0 < scores.r_precision.mean() < 1


def test_skipped_files_are_counted_and_logged_by_reason(
    tiny_model: Path, image_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (image_folder / "empty.jpg").write_bytes(b"")
    (image_folder / "page.jpg").write_bytes(b"<html>")
    (image_folder / "gone.jpg").symlink_to("nowhere")
    with caplog.at_level(logging.WARNING):
        folder = embed_folder(image_folder, embedder=Embedder(tiny_model, threads=1))
    assert folder.skipped == 3
    assert len(folder.vectors) == len(folder.labels) == 15
    assert "skipped 3 of 18 files: 1 dangling-link, 1 empty-file, 1 not-an-image" in caplog.text


def test_folders_that_cannot_be_scored_say_why(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no usable image in the folder: it has no files"):
        evaluate_model(tiny_model, data=tmp_path / "empty", ks=KS)
    draw_image((1, 2, 3), seed=0).save(tmp_path / "empty" / "a.png")
    with pytest.raises(InputError, match="none of 1 queries has a label"):
        evaluate_model(tiny_model, data=tmp_path / "empty", ks=KS)
    with pytest.raises(InputError, match="no such folder"):
        evaluate_model(tiny_model, data=tmp_path / "none", ks=KS)
