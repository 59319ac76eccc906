"""Label noise: exact, seeded, and always wrong; and the report on what it did."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from index.errors import InputError
from training.data import label_noise
from training.data.label_noise import Labels, add_label_noise
from training.options.config import NOISE_KINDS, LabelNoise


def add_noise(kind: str, labels: Labels, *, class_count: int, rate: float = 1, seed: int = 0, **changes: Any) -> Labels:
    features = np.random.default_rng(0).standard_normal((len(labels), 4), dtype=np.float32)
    usual = {"class_count": class_count, "features": features}
    return add_label_noise(labels, noise=LabelNoise(kind, rate), seed=seed, **(usual | changes))


@pytest.mark.parametrize("kind", NOISE_KINDS)
@given(count=st.integers(0, 200), class_count=st.integers(2, 12), rate=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_the_asked_share_gets_another_class(kind: str, count: int, class_count: int, rate: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, class_count, size=count)
    labels[:class_count] = np.arange(class_count)[:count]
    assume(kind != "nearest-class" or count != 1)  # one class only: refused, see below
    before = labels.copy()
    noisy = add_noise(kind, labels, class_count=class_count, rate=rate, seed=seed)
    assert (noisy != labels).sum() == round(rate * count)
    assert noisy.dtype == np.int64
    assert ((noisy >= 0) & (noisy < class_count)).all()
    assert np.array_equal(labels, before), "the given labels are left alone"
    assert np.array_equal(noisy, add_noise(kind, labels, class_count=class_count, rate=rate, seed=seed))


def test_wrong_labels_are_spread_evenly_over_the_other_classes() -> None:
    labels = np.full(9000, 3, dtype=np.int64)
    counts = np.bincount(add_noise("uniform", labels, class_count=10), minlength=10)
    assert counts[3] == 0
    others = np.delete(counts, 3)
    assert (np.abs(others - 1000) < 5 * np.sqrt(1000)).all()


@given(class_count=st.integers(2, 9), nearest=st.integers(1, 10), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_nearest_class_noise_draws_each_of_the_nearest_classes_and_no_other(class_count, nearest, seed) -> None:
    labels = np.arange(60 * class_count) % class_count
    features = (
        np.random.default_rng(seed).standard_normal((len(labels), 3), dtype=np.float32)
        + 3 * np.eye(class_count, 3, dtype=np.float32)[labels]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_noise, "NEAREST", nearest)
        noisy = add_noise("nearest-class", labels, features=features, class_count=class_count, seed=seed)
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1)[:, None]
    means = np.array([unit[labels == c].mean(axis=0) for c in range(class_count)])
    for c in range(class_count):
        cosines = {
            d: means[c] @ means[d] / np.linalg.norm(means[c]) / np.linalg.norm(means[d])
            for d in range(class_count)
            if d != c
        }
        drawn = set(noisy[labels == c].tolist())
        assert drawn <= set(sorted(cosines, key=lambda d: -cosines[d])[:nearest])
        if nearest <= 3:
            assert len(drawn) == min(nearest, class_count - 1), "60 draws find all of three"


def test_the_length_of_features_does_not_sway_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_noise, "NEAREST", 1)
    labels = np.array([0, 0, 1, 2])
    features = np.array([[1, 0], [0, 1000], [3, 3.1], [0, 1]], dtype=np.float32)  # class 0 lies on the diagonal
    for seed in range(8):
        noisy = add_noise("nearest-class", labels, features=features, class_count=3, seed=seed)
        assert noisy[:2].tolist() == [1, 1]


def test_a_class_without_samples_is_never_nearest() -> None:
    labels = np.array([0, 0, 4, 4, 4])
    features = np.eye(5, dtype=np.float32)
    noisy = add_noise("nearest-class", labels, features=features, class_count=6)
    assert noisy.tolist() == [4, 4, 0, 0, 0]


@pytest.mark.parametrize("kind", ["small-cluster", "open-set"])
@given(class_count=st.integers(3, 8), rate=st.floats(0, 0.66), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_open_set_noise_empties_classes_and_only_the_last_one_in_part(kind, class_count, rate, seed) -> None:
    labels = np.arange(10 * class_count) % class_count
    noisy = add_noise(kind, labels, class_count=class_count, rate=rate, seed=seed)
    away = np.bincount(labels[noisy != labels], minlength=class_count)
    emptied, whole, part = (np.flatnonzero(found) for found in (away == 10, away == 0, (away > 0) & (away < 10)))
    assert len(part) <= 1
    assert len(emptied) == round(rate * len(labels)) // 10
    assert set(noisy[noisy != labels].tolist()) <= set(whole.tolist()), "no image of a class that lost images is there"


def test_images_of_a_small_cluster_get_one_label() -> None:
    labels = np.repeat([0, 1, 2, 3], 20)
    corners = np.eye(10, dtype=np.float32)[np.arange(80) % 10]  # ten pairs a class
    features = corners + 0.01 * np.random.default_rng(0).standard_normal((80, 10), dtype=np.float32)
    drawn = set()
    for seed in range(8):
        noisy = add_noise("small-cluster", labels, features=7 * features, class_count=4, rate=0.5, seed=seed)
        assert np.array_equal(noisy[:10], noisy[10:20])
        assert (noisy != labels).sum() == 40
        drawn.add(len(set(noisy[noisy != labels].tolist())))
    assert drawn == {2}, "the clusters of a class go to several classes"
    alone = add_noise("open-set", labels, features=7 * features, class_count=4, rate=0.5, seed=0)
    assert (alone[:10] != alone[10:20]).any(), "open-set noise knows of no clusters"


def test_small_cluster_noise_of_all_classes_and_of_single_images_is_wrong_throughout() -> None:
    labels = np.array([0, 1, 1, 1, 2])
    noisy = add_noise("small-cluster", labels, class_count=3)
    assert (noisy != labels).all()
    equal = np.ones((5, 4), dtype=np.float32)
    assert (add_noise("small-cluster", labels, features=equal, class_count=3) != labels).all()


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_that_cannot_be_made_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="two classes, got 1"):
        add_noise(kind, np.zeros(4, dtype=np.int64), class_count=1)
    if kind == "nearest-class":
        with pytest.raises(InputError, match="samples of at least two classes, got one"):
            add_noise(kind, np.zeros(4, dtype=np.int64), class_count=4)
    for rate in (-0.1, 1.1):
        with pytest.raises(InputError, match=r"0\.\.1"):
            LabelNoise(kind, rate)


def test_a_kind_of_noise_that_is_unknown_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be one of uniform, .*'gaussian'"):
        LabelNoise("gaussian", 0.5)
