"""Label noise: exact, seeded, and always wrong; and the report on what it did."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from index.errors import InputError
from training.data.label_noise import (
    Hierarchy,
    Labels,
    add_bernoulli_noise,
    add_label_noise,
    add_nearest_class_noise,
    add_semantic_noise,
    add_uniform_noise,
    describe_noise,
)
from training.options.config import NOISE_KINDS, LabelNoise


def make_hierarchy(class_count: int) -> Hierarchy:
    """Three classes a genus, three genera a family, under one root."""
    climbs = {f"c{i}": (f"c{i}", f"genus {i // 3}", f"family {i // 9}", "root") for i in range(class_count)}
    return Hierarchy(climbs)


def add_noise(kind: str, labels: Labels, *, class_count: int, rate: float, seed: int) -> Labels:
    return add_label_noise(
        labels,
        noise=LabelNoise(kind, rate),
        classes=[f"c{i}" for i in range(class_count)],
        features=np.random.default_rng(0).standard_normal((len(labels), 4), dtype=np.float32),
        hierarchy=make_hierarchy(class_count),
        seed=seed,
    )


@pytest.mark.parametrize("kind", NOISE_KINDS)
@given(
    count=st.integers(0, 200), class_count=st.integers(2, 12), rate=st.floats(0, 1), seed=st.integers(0, 2**32 - 1)
)
@settings(deadline=None, max_examples=40)
def test_exactly_the_asked_share_changes_and_always_to_another_known_class(
    kind: str, count: int, class_count: int, rate: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, class_count, size=count)
    labels[:class_count] = np.arange(class_count)[:count]
    assume(kind != "nearest-class" or count != 1)  # one class only: refused, see below
    before = labels.copy()
    noisy = add_noise(kind, labels, class_count=class_count, rate=rate, seed=seed)
    changed = (noisy != labels).sum()
    if kind == "bernoulli":
        assert abs(changed - rate * count) <= 6 * np.sqrt(count / 4)
    else:
        assert changed == round(rate * count)
    assert noisy.dtype == np.int64
    assert ((noisy >= 0) & (noisy < class_count)).all()
    assert np.array_equal(labels, before), "the given labels are left alone"
    assert np.array_equal(noisy, add_noise(kind, labels, class_count=class_count, rate=rate, seed=seed))


@pytest.mark.parametrize("add", [add_uniform_noise, add_bernoulli_noise])
def test_wrong_labels_are_spread_evenly_over_the_other_classes(add: Callable[..., Labels]) -> None:
    labels = np.full(9000, 3, dtype=np.int64)
    counts = np.bincount(add(labels, class_count=10, rate=1, seed=0), minlength=10)
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
    noisy = add_nearest_class_noise(
        labels, features=features, class_count=class_count, rate=1, seed=seed, nearest=nearest
    )
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1)[:, None]
    means = np.array([unit[labels == c].mean(axis=0) for c in range(class_count)])
    for c in range(class_count):
        cosines = {
            d: means[c] @ means[d] / np.linalg.norm(means[c]) / np.linalg.norm(means[d])
            for d in range(class_count) if d != c
        }  # fmt: skip
        drawn = set(noisy[labels == c].tolist())
        assert drawn <= set(sorted(cosines, key=lambda d: -cosines[d])[:nearest])
        if nearest <= 3:
            assert len(drawn) == min(nearest, class_count - 1), "60 draws find all of three"


def test_the_length_of_features_does_not_sway_what_is_near() -> None:
    labels = np.array([0, 0, 1, 2])
    features = np.array([[1, 0], [0, 1000], [3, 3.1], [0, 1]], dtype=np.float32)  # class 0 lies on the diagonal
    for seed in range(8):
        noisy = add_nearest_class_noise(labels, features=features, class_count=3, rate=1, seed=seed, nearest=1)
        assert noisy[:2].tolist() == [1, 1]


def test_a_class_without_samples_is_never_nearest() -> None:
    labels = np.array([0, 0, 4, 4, 4])
    features = np.eye(5, dtype=np.float32)
    noisy = add_nearest_class_noise(labels, features=features, class_count=6, rate=1, seed=0)
    assert noisy.tolist() == [4, 4, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(4, dtype=np.int64)}, "samples of at least two classes, got one"),
        ({"features": np.ones((3, 2), dtype=np.float32)}, "needs 4 feature rows, one a label; got 3"),
        ({"nearest": 0}, "at least one nearest class, got 0"),
        ({"class_count": 1}, "two classes, got 1"),
        ({"rate": 2}, r"0\.\.1, got 2"),
    ],
)
def test_what_nearest_class_noise_cannot_do_is_refused(changes: dict[str, object], message: str) -> None:
    arguments = {
        "labels": np.arange(4), "features": np.eye(4, dtype=np.float32), "class_count": 4, "rate": 0.5, "seed": 0
    }  # fmt: skip
    with pytest.raises(InputError, match=message):
        add_nearest_class_noise(**(arguments | changes))


def test_semantic_noise_stays_below_the_first_ancestor_that_branches() -> None:
    # c0, c1, c2 | c3, c4, c5 | c6 in one family, c9 alone in the other; c7 and c8 do not train
    classes = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c9"]
    labels = np.arange(3000) % 8
    noisy = add_semantic_noise(labels, classes=classes, hierarchy=make_hierarchy(12), rate=1, seed=0)
    found = {classes[c]: {classes[d] for d in set(noisy[labels == c].tolist())} for c in range(8)}
    assert found == {
        "c0": {"c1", "c2"}, "c1": {"c0", "c2"}, "c2": {"c0", "c1"},
        "c3": {"c4", "c5"}, "c4": {"c3", "c5"}, "c5": {"c3", "c4"},
        "c6": {"c0", "c1", "c2", "c3", "c4", "c5"},
        "c9": {"c0", "c1", "c2", "c3", "c4", "c5", "c6"},
    }  # fmt: skip


def test_every_branch_is_as_likely_whatever_it_holds() -> None:
    hierarchy = Hierarchy({
        "cat": ("cat", "root"), "owl": ("owl", "bird", "root"), "jay": ("jay", "bird", "root"), "ox": ("ox", "root"),
    })  # fmt: skip
    labels = np.zeros(8000, dtype=np.int64)
    noisy = add_semantic_noise(labels, classes=["cat", "owl", "jay", "ox"], hierarchy=hierarchy, rate=1, seed=0)
    counts = np.bincount(noisy, minlength=4)
    assert (np.abs(counts - [0, 2000, 2000, 4000]) < 5 * np.sqrt(2000)).all()


def test_each_kind_is_the_function_of_its_name() -> None:
    labels, features = np.arange(300) % 12, np.random.default_rng(1).standard_normal((300, 4), dtype=np.float32)
    hierarchy, common = make_hierarchy(12), {"rate": 0.4, "seed": 5}
    classes = list(hierarchy.paths)
    expected = {
        "uniform": add_uniform_noise(labels, class_count=12, **common),
        "bernoulli": add_bernoulli_noise(labels, class_count=12, **common),
        "nearest-class": add_nearest_class_noise(labels, features=features, class_count=12, **common),
        "semantic": add_semantic_noise(labels, classes=classes, hierarchy=hierarchy, **common),
    }
    assert set(expected) == set(NOISE_KINDS)
    for kind, noisy in expected.items():
        found = add_label_noise(
            labels, noise=LabelNoise(kind, 0.4), classes=classes, features=features, hierarchy=hierarchy, seed=5
        )
        assert np.array_equal(found, noisy), kind


def test_noise_that_cannot_be_made_is_refused() -> None:
    given = {"classes": ["a", "b"], "features": np.eye(4, dtype=np.float32), "hierarchy": None, "seed": 0}
    for kind, message in (
        ("semantic", "needs a class hierarchy"),
        ("gaussian", "must be one of uniform, .*'gaussian'"),
    ):
        with pytest.raises(InputError, match=message):
            add_label_noise(np.arange(4) % 2, noise=LabelNoise(kind, 0.5), **given)
    for add in (add_uniform_noise, add_bernoulli_noise):
        with pytest.raises(InputError, match="two classes, got 1"):
            add(np.zeros(4, dtype=np.int64), class_count=1, rate=0.5, seed=0)
    for kind, rate in zip(NOISE_KINDS, (-0.1, 1.1, 1.1, -0.1), strict=True):
        with pytest.raises(InputError, match=r"0\.\.1"):
            add_noise(kind, np.arange(4) % 2, class_count=2, rate=rate, seed=0)


def test_the_report_counts_what_left_and_what_came() -> None:
    given_labels = np.array([0, 0, 0, 0, 1, 1, 2])
    used = np.array([0, 0, 1, 1, 1, 0, 1])
    report = describe_noise(given_labels, used, classes=["ant", "bee", "cat", "dog"])
    assert json.loads(json.dumps(report)) == {
        "samples": 7,
        "wrong": 4,
        "rate": 4 / 7,
        "emptied_classes": 1,
        "classes": [
            {"name": "ant", "samples": 4, "relabelled_away": 2, "wrongly_labelled": 1, "purity": 2 / 3},
            {"name": "bee", "samples": 2, "relabelled_away": 1, "wrongly_labelled": 3, "purity": 1 / 4},
            {"name": "cat", "samples": 1, "relabelled_away": 1, "wrongly_labelled": 0, "purity": None},
            {"name": "dog", "samples": 0, "relabelled_away": 0, "wrongly_labelled": 0, "purity": None},
        ],
        "swaps": [
            {"given": "ant", "used": "bee", "samples": 2},
            {"given": "bee", "used": "ant", "samples": 1},
            {"given": "cat", "used": "bee", "samples": 1},
        ],
    }
