"""How well a gallery finds its own labels."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.arrays import UNLABELLED, normalise_rows
from index.gallery.gallery import Gallery
from index.public import evaluate
from index.vectors.exact import search
from index.writing.build import update_gallery
from retrieval_app.insights.calibration import DEPTH, calibrate, learn_shares
from retrieval_app.insights.quality import KS, assess_quality, find_nearest_by_label
from tests.index.vector_sources import VectorSource
from tests.retrieval_app.insights.conftest import MISLABELLED


def test_quality_says_what_the_evaluation_does(labelled: Gallery) -> None:
    found, evaluation = assess_quality(labelled), evaluate(labelled, k=KS)
    assert {one.k: one.value for one in found.recall_at} == evaluation.scores.recall
    assert all(one.interval[0] <= one.value <= one.interval[1] for one in found.recall_at)
    assert found.map_at_r.value == evaluation.scores.to_json()["map_at_r"]
    assert {one.label: (one.images, one.recall_at_1) for one in found.classes} == {
        label: (score.queries, score.recall_at_1) for label, score in evaluation.per_class.items()
    }
    assert [one.recall_at_1 for one in found.classes] == sorted(one.recall_at_1 for one in found.classes)


def test_unlabelled_images_are_neither_queries_nor_found(build: Callable[[dict[str, str]], Gallery]) -> None:
    labelled = {f"{label}/{number}.png": label for label in ("red", "blue") for number in range(3)}
    gallery = build(labelled)
    plain, quality = evaluate(gallery, k=KS), assess_quality(gallery)
    source = Path(gallery.sources[1].root)
    for path in labelled:  # without the folder of a label; nearer than any other image
        shutil.copyfile(source / path, source / path.replace("/", "-"))
    update_gallery(gallery.path)
    gallery = Gallery.open(gallery.path)
    assert gallery.count == 12
    found, again = evaluate(gallery, k=KS), assess_quality(gallery)
    assert found.scores.to_json() == plain.scores.to_json()
    assert (again.recall_at, again.map_at_r, again.worst) == (quality.recall_at, quality.map_at_r, quality.worst)


def test_the_worst_queries_meet_another_label_first(labelled: Gallery, ids: dict[str, int]) -> None:
    found = assess_quality(labelled)
    assert {query.id for query in found.worst} >= {ids[path] for path in MISLABELLED}
    for query in found.worst:
        first, *_ = hits = labelled.search(labelled.vector(query.id), k=query.misses, exclude_id=query.id)
        assert query.label not in {hit.label for hit in hits}
        assert (query.hit.id, query.hit.label) == (first.id, first.label)
        assert query.hit.score == pytest.approx(first.score, abs=1e-6)
    assert [query.misses for query in found.worst] == sorted((q.misses for q in found.worst), reverse=True)
    assert sum(pair.count for pair in found.confusion) == len(found.worst)
    assert {image_id for pair in found.confusion for image_id in pair.ids} == {query.id for query in found.worst}


@pytest.mark.parametrize("others", [{"c/1.png": "green", "c/2.png": "green"}, {}])
def test_copies_do_not_count(build: Callable[[dict[str, str]], Gallery], others: dict[str, str]) -> None:
    gallery = build({"a/1.png": "red", "b/1.png": "blue", **others})
    source = Path(gallery.sources[1].root)
    for name in "ab":
        shutil.copyfile(source / name / "1.png", source / name / "same.png")
    update_gallery(gallery.path)
    found = assess_quality(Gallery.open(gallery.path))
    assert (found.queries, found.recall_at[0].value) == (4 + len(others), 1.0)
    assert (found.grouped.found_by, found.grouped.groups, found.grouped.images) == ("copies", 2, 4)
    # a and b have duplicates only, and so c alone asks
    assert (found.grouped.value, found.grouped.queries) == ((1.0, 2) if others else (None, 0))
    assert found.grouped.flattered or others


def test_the_nearest_of_the_same_and_of_another_label_are_those_of_a_full_comparison() -> None:
    vectors, labels = VectorSource(width=8).draw(500, seed=2)
    labels[0] = 99  # alone
    asked = np.r_[0, np.random.default_rng(0).permutation(np.arange(1, 500))[:300]]
    groups = np.random.default_rng(1).integers(0, 250, size=500)
    found = find_nearest_by_label(vectors, labels, asked, groups=groups, progress=lambda done, total: None)
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    same = (labels[:, None] == labels)[asked]
    products = products[asked]
    np.testing.assert_allclose(found.same, np.where(same, products, -np.inf).max(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.different, np.where(same, -np.inf, products).max(axis=1), atol=1e-6)
    assert found.same[0] == -np.inf
    products[(groups[:, None] == groups)[asked]] = -np.inf
    np.testing.assert_allclose(found.same_grouped, np.where(same, products, -np.inf).max(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.different_grouped, np.where(same, -np.inf, products).max(axis=1), atol=1e-6)
    assert (labels[found.different_row] != labels[asked]).all()


def test_the_share_said_is_the_share_found_for_members_that_did_not_ask() -> None:
    vectors, labels = VectorSource(width=16).draw(4000, seed=1)
    calibration = learn_shares(vectors[:2500], labels[:2500], seed=0)
    asked = np.arange(2500, 4000)
    found = search(vectors[asked], vectors, k=DEPTH, own=asked)
    said = np.array([at.value for at in calibration.precision_at(found.cosines.ravel())])
    same = (labels[found.rows] == labels[2500:, None]).ravel()
    assert abs(said.mean() - same.mean()) < 0.02
    tenths = (said * 10).astype(int)
    gaps = np.bincount(tenths, weights=said) - np.bincount(tenths, weights=same)
    assert np.abs(gaps).sum() / len(said) < 0.03


def test_what_is_said_holds_for_photos_from_elsewhere_where_groups_are_kept_apart() -> None:
    """Half of the bursts of each label are the gallery, in which a photo mostly finds its burst; the others ask."""
    random, groups = np.random.default_rng(0), np.arange(4800) // 12
    labels, known = groups % 20, groups < 200
    x = random.normal(size=(20, 24))[labels] + 1.5 * random.normal(size=(400, 24))[groups]
    x += random.uniform(0.3, 3, size=(4800, 1)) * random.normal(size=x.shape)  # some shots are worse than others
    vectors = normalise_rows(x.astype(np.float32))
    found = search(vectors[~known], vectors[known], k=DEPTH)
    same = (labels[known][found.rows] == labels[~known][:, None]).mean()
    said = {}
    for name, given in (("ungrouped", None), ("grouped", groups[known])):
        calibration = learn_shares(vectors[known], labels[known], seed=0, groups=given)
        said[name] = np.mean([at.value for at in calibration.precision_at(found.cosines.ravel())])
    assert abs(said["grouped"] - same) < 0.03
    assert said["ungrouped"] - same > 0.06, "which the grouped evaluation mends"


def test_labels_of_a_single_group_do_not_ask_as_they_could_only_miss() -> None:
    random, labels = np.random.default_rng(0), np.arange(800) // 8
    things = random.normal(size=(100, 16)).astype(np.float32)
    vectors = normalise_rows(things[labels] + 0.6 * random.normal(size=(800, 16)).astype(np.float32))
    assert learn_shares(vectors, labels, seed=0, groups=labels) is None
    rows = np.arange(800)
    known = learn_shares(vectors, labels, seed=0, groups=np.where(labels < 50, rows, 800 + labels))
    assert known.queries == 400
    assert known.points[-1][1] > 0.9
    lone = np.where(labels < 50, labels, 50 + rows)
    assert known == learn_shares(vectors, lone, seed=0), "as if nothing had the label of those of a single group"


def test_the_share_rises_with_the_score_and_lies_in_its_interval(labelled: Gallery) -> None:
    calibration = calibrate(labelled)
    precisions = calibration.precision_at(np.linspace(-1, 1, 201))
    assert [found.value for found in precisions] == sorted(found.value for found in precisions)
    assert all(0 <= found.low <= found.value <= found.high <= 1 for found in precisions)
    scores = [point[0] for point in calibration.points]
    assert scores == sorted(set(scores))


def test_one_label_and_lone_labels_say_nothing() -> None:
    vectors, _ = VectorSource(width=16).draw(100, seed=1)
    for labels in (np.zeros(100, dtype=np.int64), np.arange(100), np.full(100, UNLABELLED)):
        assert learn_shares(vectors, labels, seed=0) is None
