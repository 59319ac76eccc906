"""What a score says of the label."""

from __future__ import annotations

import numpy as np

from index.arrays import UNLABELLED, normalise_rows
from index.gallery.gallery import Gallery
from index.vectors.exact import search
from retrieval_app.insights.calibration import DEPTH, calibrate, learn_shares
from tests.index.vector_sources import VectorSource


def test_the_share_said_is_the_share_found_for_members_that_did_not_ask() -> None:
    vectors, labels = VectorSource(width=16).draw(4000, seed=1)
    calibration = learn_shares(vectors[:2500], labels[:2500], seed=0)
    assert calibration is not None
    asked = np.arange(2500, 4000)
    found = search(vectors[asked], vectors, k=DEPTH, own=asked)
    said = np.array([band.share for band in calibration.bands(found.cosines.ravel())])
    same = (labels[found.rows] == labels[2500:, None]).ravel()
    assert abs(said.mean() - same.mean()) < 0.02
    tenths = (said * 10).astype(int)
    gaps = np.bincount(tenths, weights=said) - np.bincount(tenths, weights=same)
    assert np.abs(gaps).sum() / len(said) < 0.03


def test_what_is_said_holds_for_photos_from_elsewhere_where_scenes_are_kept_apart() -> None:
    """Half of the bursts of each label are the gallery, in which a photo mostly finds its burst; the others ask."""
    random, scenes = np.random.default_rng(0), np.arange(4800) // 12
    labels, known = scenes % 20, scenes < 200
    x = random.normal(size=(20, 24))[labels] + 1.5 * random.normal(size=(400, 24))[scenes]
    x += random.uniform(0.3, 3, size=(4800, 1)) * random.normal(size=x.shape)  # some shots are worse than others
    vectors = normalise_rows(x.astype(np.float32))
    found = search(vectors[~known], vectors[known], k=DEPTH)
    same = (labels[known][found.rows] == labels[~known][:, None]).mean()
    said = {}
    for name, groups in (("as they are", None), ("apart", scenes[known])):
        calibration = learn_shares(vectors[known], labels[known], seed=0, groups=groups)
        assert calibration is not None
        said[name] = np.mean([band.share for band in calibration.bands(found.cosines.ravel())])
    assert abs(said["apart"] - same) < 0.03
    assert said["as they are"] - same > 0.06, "which is what keeping them apart mends"


def test_labels_of_a_single_scene_do_not_ask_as_they_could_only_miss() -> None:
    random, labels = np.random.default_rng(0), np.arange(800) // 8
    things = random.normal(size=(100, 16)).astype(np.float32)
    vectors = normalise_rows(things[labels] + 0.6 * random.normal(size=(800, 16)).astype(np.float32))
    assert learn_shares(vectors, labels, seed=0, groups=labels) is None
    rows = np.arange(800)
    known = learn_shares(vectors, labels, seed=0, groups=np.where(labels < 50, rows, 800 + labels))
    assert known is not None
    assert known.asked == 400
    assert known.points[-1][1] > 0.9
    lone = np.where(labels < 50, labels, 50 + rows)
    assert known == learn_shares(vectors, lone, seed=0), "as if nothing had the label of those of a single scene"


def test_the_share_rises_with_the_score_and_lies_in_its_interval(labelled: Gallery) -> None:
    calibration = calibrate(labelled)
    assert calibration is not None
    bands = calibration.bands(np.linspace(-1, 1, 201))
    assert [band.share for band in bands] == sorted(band.share for band in bands)
    assert all(0 <= band.low <= band.share <= band.high <= 1 for band in bands)
    scores = [point[0] for point in calibration.points]
    assert scores == sorted(set(scores))


def test_one_label_and_lone_labels_say_nothing() -> None:
    vectors, _ = VectorSource(width=16).draw(100, seed=1)
    for labels in (np.zeros(100, dtype=np.int64), np.arange(100), np.full(100, UNLABELLED)):
        assert learn_shares(vectors, labels, seed=0) is None


def test_unlabelled_members_change_nothing() -> None:
    vectors, labels = VectorSource(width=16).draw(300, seed=1)
    hidden = np.concatenate([labels, np.full(300, UNLABELLED)])
    assert learn_shares(np.concatenate([vectors, vectors]), hidden, seed=0) == learn_shares(
        vectors, labels, seed=0
    )
