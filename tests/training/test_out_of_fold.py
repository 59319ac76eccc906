"""Out-of-fold confidences: nobody judges what he has seen."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.out_of_fold import assign_folds, fit_out_of_fold

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=80)
FOLDS = st.integers(2, 7)


@settings(deadline=None)
@given(labels=LABELS, folds=FOLDS, seed=st.integers(0, 100))
def test_without_groups_every_class_and_everything_is_spread_evenly(
    labels: list[int], folds: int, seed: int
) -> None:
    numbers = np.array(labels, dtype=np.int64)
    assigned = assign_folds(numbers, folds=folds, groups=None, seed=seed)
    assert assigned.dtype == np.int64
    assert assigned.shape == numbers.shape
    for label in np.unique(numbers):
        counts = np.bincount(assigned[numbers == label], minlength=folds)
        assert len(counts) == folds
        assert counts.max() - counts.min() <= 1
    totals = np.bincount(assigned, minlength=folds)
    assert totals.max() - totals.min() <= 1


@settings(deadline=None)
@given(data=st.data(), labels=LABELS, folds=FOLDS, seed=st.integers(0, 100))
def test_groups_stay_whole_and_classes_differ_by_at_most_the_largest_group(
    data: st.DataObject, labels: list[int], folds: int, seed: int
) -> None:
    numbers = np.array(labels, dtype=np.int64)
    drawn = data.draw(st.lists(st.integers(0, 30), min_size=len(labels), max_size=len(labels)))
    groups = 6 * np.array(drawn, dtype=np.int64) + numbers  # of one class each
    assigned = assign_folds(numbers, folds=folds, groups=groups, seed=seed)
    for group in np.unique(groups):
        assert len(set(assigned[groups == group])) == 1
    for label in np.unique(numbers):
        own = numbers == label
        counts = np.bincount(assigned[own], minlength=folds)
        assert len(counts) == folds
        assert counts.max() - counts.min() <= np.bincount(groups[own]).max()


@settings(deadline=None)
@given(labels=LABELS, folds=FOLDS, seed=st.integers(0, 100), data=st.data())
def test_groups_of_several_classes_stay_whole_and_the_seed_decides_all(
    data: st.DataObject, labels: list[int], folds: int, seed: int
) -> None:
    numbers = np.array(labels, dtype=np.int64)
    drawn = data.draw(st.lists(st.integers(0, 20), min_size=len(labels), max_size=len(labels)))
    groups = np.array(drawn, dtype=np.int64)
    assigned = assign_folds(numbers, folds=folds, groups=groups, seed=seed)
    assert ((assigned >= 0) & (assigned < folds)).all()
    assert all(len(set(assigned[groups == group])) == 1 for group in groups)
    np.testing.assert_array_equal(assigned, assign_folds(numbers, folds=folds, groups=groups, seed=seed))


def test_single_images_fill_up_what_a_group_leaves() -> None:
    labels = np.zeros(10, dtype=np.int64)
    groups = np.array([7, 7, 7, 1, 2, 3, 4, 5, 6, 8])
    assigned = assign_folds(labels, folds=3, groups=groups, seed=0)
    assert sorted(np.bincount(assigned)) == [3, 3, 4]


def test_another_seed_makes_other_folds() -> None:
    labels = np.repeat(np.arange(3), 20)
    first, second = (assign_folds(labels, folds=5, groups=None, seed=seed) for seed in (0, 1))
    assert (first != second).any()


def _fit(features: np.ndarray, labels: np.ndarray, **changes: object) -> np.ndarray:
    options = {"class_count": 3, "folds": 3, "groups": None, "seed": 0, "device": torch.device("cpu")}
    return fit_out_of_fold(features, labels, **(options | {"progress": None} | changes))  # type: ignore[arg-type]


def _clusters(*, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(3), per_class).astype(np.int64)
    centres = np.random.default_rng(0).normal(size=(3, 256))
    noise = np.random.default_rng(1).normal(scale=0.5, size=(len(labels), 256))
    return (centres[labels] + noise).astype(np.float32), labels


def test_confidences_tell_separate_classes_apart() -> None:
    features, labels = _clusters(per_class=20)
    steps: list[tuple[int, int]] = []
    confidences = _fit(features, labels, progress=lambda *step: steps.append(step))
    assert confidences.dtype == np.float32
    assert confidences.shape == (60, 3)
    assert confidences.min() >= 0
    assert confidences.max() <= 1
    np.testing.assert_array_equal(confidences.argmax(axis=1), labels)
    assert steps[-1] == (3, 3)


def test_an_image_does_not_teach_the_module_that_judges_it() -> None:
    features, labels = _clusters(per_class=20)
    wrong = labels.copy()
    wrong[0] = 1  # alone with its mistake: whoever has not seen it, has no reason to share it
    assert _fit(features, wrong)[0].argmax() == 0


def test_the_same_seed_gives_the_same_confidences() -> None:
    features, labels = _clusters(per_class=6)
    np.testing.assert_array_equal(_fit(features, labels), _fit(features, labels))


def test_more_folds_than_images_judge_every_image() -> None:
    features, labels = _clusters(per_class=2)
    assert (_fit(features, labels, folds=9).max(axis=1) > 0).all()
