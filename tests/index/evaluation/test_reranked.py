"""What ranking again is worth: the figures of a gallery are those of its own searches."""

from pathlib import Path

import numpy as np
import pytest

from index.arrays import UNLABELLED, normalise_rows
from index.errors import InputError
from index.evaluation.metrics import score_retrieval
from index.evaluation.reranked import score_reranked
from index.gallery.gallery import Gallery
from index.public import evaluate
from tests.conftest import draw_folder
from tests.index.galleries import build


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("reranked") / "images", per_class=12)


def test_the_figures_are_those_of_searches(images: Path, tmp_path: Path, tiny_model: Path) -> None:
    build(images, tmp_path / "gallery", tiny_model)
    gallery = Gallery.open(tmp_path / "gallery")
    found = evaluate(gallery, k=(1,), rerank=True)
    by_hand: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for image_id in gallery.ids.tolist():
        own = gallery.image(image_id).label
        for rerank, scores in by_hand.items():
            hits = gallery.search(gallery.vector(image_id), k=gallery.count, exclude_id=image_id, rerank=rerank)
            right = np.array([hit.label == own for hit in hits][:11])
            precision = np.cumsum(right) / np.arange(1, 12)
            scores.append((float((precision * right).sum() / 11), float(right[:10].mean())))
    plain, again = (np.mean(by_hand[rerank], axis=0) for rerank in (False, True))
    assert found.reranked.queries == 36
    assert found.reranked.map_at_r == pytest.approx((plain[0], again[0]))
    assert found.reranked.precision_at_10 == pytest.approx((plain[1], again[1]))
    assert found.reranked.map_at_r[0] == pytest.approx(found.scores.average_precision.mean())
    assert found.reranked.gain.mean == pytest.approx(again[0] - plain[0])
    assert evaluate(model=tiny_model, data=images, k=(1,), rerank=True).reranked == found.reranked


def test_queries_from_elsewhere_find_all_members_and_those_without_a_match_do_not_ask() -> None:
    generator = np.random.default_rng(1)
    gallery = normalise_rows(generator.normal(size=(60, 8)).astype(np.float32))
    queries = normalise_rows(generator.normal(size=(9, 8)).astype(np.float32))
    labels, asked = np.arange(60) % 4, np.array([0, 1, 2, 3, 0, 1, 9, UNLABELLED, 2])
    found = score_reranked(queries, asked, gallery=gallery, gallery_labels=labels)
    expected = score_retrieval(
        queries, asked, gallery=gallery, gallery_labels=labels, gallery_ids=np.arange(60), ks=(1,)
    )
    assert found.queries == expected.queries == 7
    assert found.map_at_r[0] == pytest.approx(expected.average_precision.mean())


def test_nothing_to_find_is_refused() -> None:
    vectors = np.eye(3, dtype=np.float32)
    with pytest.raises(InputError, match="no query has another image of its label"):
        score_reranked(vectors, np.arange(3), gallery=vectors, gallery_labels=np.arange(3), own=np.arange(3))
