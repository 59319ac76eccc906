"""Labels that may be wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from index.build import update_gallery
from index.gallery import Gallery
from index.metrics import ranking_auc
from retrieval_app.insights.copies import find_copies
from retrieval_app.insights.doubts import LEAST_DOUBT, Doubts, find_doubts
from retrieval_app.insights.label_judge import estimate_wrong, judge_labels
from tests.index.vectors import VectorSource
from tests.retrieval_app.insights.conftest import MISLABELLED


def plant(*, share: float = 0.2, count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Vectors, labels of which a share is wrong, the right ones, and how many there are."""
    vectors, right = VectorSource(width=24).draw(count, seed=3)
    right = np.unique(right, return_inverse=True)[1]
    classes = int(right.max()) + 1
    random = np.random.default_rng(0)
    labels = right.copy()
    wrong = random.permutation(count)[: int(share * count)]
    labels[wrong] = (labels[wrong] + random.integers(1, classes, len(wrong))) % classes
    return vectors, labels, right, classes


@pytest.fixture(scope="module")
def doubts(labelled: Gallery) -> Doubts:
    """Of the labelled gallery."""
    return find_doubts(labelled)


def test_planted_mistakes_rank_first_and_what_they_show_is_suggested(
    labelled: Gallery, doubts: Doubts, ids: dict[str, int]
) -> None:
    first = {doubt.id: doubt for doubt in doubts.items[: len(MISLABELLED)]}
    assert first.keys() == {ids[path] for path in MISLABELLED}
    for path, shown in MISLABELLED.items():
        doubt = first[ids[path]]
        assert (doubt.label, doubt.suggested) == (path.partition("/")[0], shown)
        assert doubt.wrong > 0.5
        assert {label for _, _, label in doubt.disagreeing} == {shown}
        for other, score in doubt.agreeing:
            assert labelled.image(other).label == doubt.label
            assert score == pytest.approx(float(labelled.vector(other) @ labelled.vector(doubt.id)), abs=1e-5)
        assert doubts.find(ids[path]) is doubt
    assert doubts.find(ids["blue/3.png"]) is None
    assert doubts.judged == labelled.count
    assert set(doubts.pairs) == {("red", "blue", 1), ("green", "red", 1)}


def test_the_document_has_what_the_api_shows(doubts: Doubts) -> None:
    document = doubts.to_json()
    assert document["total"] == len(document["items"]) == len(doubts.items)
    assert document["items"][0].keys() == {
        "id", "label", "suggested", "wrong", "suggestions", "agreeing", "disagreeing"
    }  # fmt: skip
    assert document["pairs"][0].keys() == {"label", "suggested", "count"}
    assert [item["wrong"] for item in document["items"]] == sorted(
        (doubt.wrong for doubt in doubts.items), reverse=True
    )
    assert document["items"][-1]["wrong"] >= LEAST_DOUBT


def test_a_copy_does_not_vouch_for_its_like(build: Callable[[dict[str, str]], Gallery]) -> None:
    images = {f"red/{i}.png": "red" for i in range(8)} | {f"blue/{i}.png": "blue" for i in range(8)}
    gallery = build(images | {"blue/wrong.png": "red"})
    source = gallery.sources[1].root
    for number in range(3):
        (source / f"blue/copy_{number}.png").write_bytes((source / "blue/wrong.png").read_bytes())
    update_gallery(gallery.path)
    changed = Gallery.open(gallery.path)
    found = find_doubts(changed, copies=find_copies(changed))
    assert {changed.image(doubt.id).path for doubt in found.items[:4]} == {
        "blue/wrong.png", "blue/copy_0.png", "blue/copy_1.png", "blue/copy_2.png"
    }  # fmt: skip
    assert all(doubt.suggested == "red" and doubt.wrong > 0.5 for doubt in found.items[:4])
    group = {doubt.id for doubt in found.items[:4]}
    assert all(other not in group for doubt in found.items[:4] for other, _ in doubt.agreeing)


def test_galleries_with_next_to_nothing_are_judged_or_left_alone(unusual: Gallery) -> None:
    found = find_doubts(unusual)
    assert 0 <= found.wrong_share <= 1
    assert found.judged in (0, 2)
    assert len(found.items) <= found.judged


def test_wrong_labels_rank_above_right_ones() -> None:
    vectors, labels, right, classes = plant()
    judged = judge_labels(vectors, labels, count=classes, groups=np.arange(len(labels)))
    is_wrong = labels != right
    assert (ranking_auc(judged.wrong[judged.judged], is_wrong[judged.judged]) or 0) > 0.9
    assert (judged.suggested[is_wrong, 0] == right[is_wrong]).mean() > 0.7
    assert (judged.suggested != labels[:, None]).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_the_share_of_wrong_labels_is_estimated_cautiously(share: float) -> None:
    vectors, labels, _, classes = plant(share=share)
    judged = judge_labels(vectors, labels, count=classes, groups=np.arange(len(labels)))
    assert 0.6 * share < judged.wrong.mean() + 1e-9 < share + 0.05


def test_progress_rises_over_judging_and_comparing_to_the_end(labelled: Gallery) -> None:
    told: list[tuple[int, int]] = []
    find_doubts(labelled, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (labelled.count, labelled.count)
    assert {done for done, _ in told} >= {labelled.count * percent // 100 for percent in (10, 15, 100)}


def test_more_confidence_is_never_more_doubt() -> None:
    own = np.random.default_rng(0).beta(2, 1, size=500)
    wrong = estimate_wrong(own, count=7)
    assert (np.diff(wrong[np.argsort(own)]) <= 1e-12).all()
    assert ((wrong >= 0) & (wrong <= 1)).all()
    assert np.isfinite(estimate_wrong(np.zeros(3), count=2)).all()
    assert estimate_wrong(np.ones(3), count=2) == pytest.approx(0, abs=1e-3)
