"""Suggested labels: how probably they are right, and how probably an image shows none of the labels."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.label_errors import LabelErrors, find_label_errors
from index.labels.suggestions import suggest_labels
from index.labels.verdicts import give_verdicts

CLASSES, UNSEEN, PER_CLASS, WIDTH = 12, 12, 60, 32
WRONG, STRANGE = 144, 100  # a fifth of the labels; images of no class


@dataclass(frozen=True)
class Drawn:
    """Gaussian classes with wrong labels; `right` is `CLASSES` or more for an image of no class."""

    features: np.ndarray
    labels: np.ndarray
    right: np.ndarray

    @property
    def is_strange(self) -> np.ndarray:
        return self.right >= CLASSES

    def find(self, **more: int) -> LabelErrors:
        return find_label_errors(self.features, self.labels, count=CLASSES, **more)

    def judge(self, errors: LabelErrors) -> np.ndarray:
        rows = np.arange(len(self.labels))
        verdicts, _ = give_verdicts(errors, self.labels, groups=rows, rare=np.zeros(len(rows), dtype=bool))
        return np.array(verdicts)


def draw(*, wrong: int = 0, strange: int = 0, spread: float, seed: int) -> Drawn:
    """`wrong` labels become another one at random, and `strange` images of other classes get one at random."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CLASSES + UNSEEN, WIDTH))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    right = np.arange(CLASSES).repeat(PER_CLASS)
    labels = right.copy()
    rows = random.permutation(len(labels))[:wrong]
    labels[rows] = (labels[rows] + random.integers(1, CLASSES, wrong)) % CLASSES
    right = np.concatenate([right, CLASSES + random.integers(0, UNSEEN, strange)])
    labels = np.concatenate([labels, random.integers(0, CLASSES, strange)])
    features = centres[right] + spread * random.normal(size=(len(right), WIDTH))
    return Drawn(features.astype(np.float32), labels, right)


def share_of_none(errors: LabelErrors) -> float:
    return errors.calibration.none_share


@pytest.mark.parametrize("seed", [0, 1])
def test_suggestions_for_wrong_labels_of_known_classes_are_as_often_right_as_they_say(seed: int) -> None:
    drawn = draw(wrong=WRONG, spread=0.25, seed=seed)
    errors, is_wrong = drawn.find(), drawn.labels != drawn.right
    assert share_of_none(errors) < 0.12
    found = errors.p_error >= 0.5
    is_right = is_wrong & (errors.suggested == drawn.right)
    assert -0.25 < errors.p_suggested[found].mean() - is_right[found].mean() < 0.05  # rather too low
    assert errors.p_suggested.sum() == pytest.approx(is_right.sum(), rel=0.25)
    verdicts = drawn.judge(errors)
    changed = verdicts == CHANGE
    assert changed.sum() > 0.7 * WRONG
    assert is_right[changed].mean() > 0.9
    assert (verdicts == DROP).mean() < 0.01


@pytest.mark.parametrize("seed", [0, 2])
def test_images_of_no_class_are_dropped_and_hardly_any_gets_another_wrong_label(seed: int) -> None:
    drawn = draw(strange=STRANGE, spread=0.2, seed=seed)
    errors = drawn.find()
    assert share_of_none(errors) > 0.85
    verdicts = drawn.judge(errors)
    assert (verdicts[drawn.is_strange] == DROP).mean() > 0.75
    assert (verdicts == CHANGE).sum() <= 2
    assert (verdicts[~drawn.is_strange] == KEEP).mean() > 0.98
    assert errors.p_no_class.sum() == pytest.approx(STRANGE, rel=0.35)
    assert errors.p_suggested.sum() < 0.05 * STRANGE


@pytest.mark.parametrize("held", [True, False])
def test_label_suggestions_and_none_are_one_probability_at_most_and_the_suggestion_is_the_best(held: bool) -> None:
    drawn = draw(wrong=72, strange=50, spread=0.3, seed=0)
    errors = drawn.find() if held else drawn.find(most_values=10)
    others = np.array([sum(p for _, p in errors.others(row, label=int(y))) for row, y in enumerate(drawn.labels)])
    assert (1 - errors.p_error + others + errors.p_no_class).max() <= 1 + 1e-9
    assert min(errors.p_suggested.min(), errors.p_no_class.min(), errors.probabilities.min()) >= 0
    for row in np.flatnonzero(errors.p_suggested > 0).tolist():
        first = errors.others(row, label=int(drawn.labels[row]))[0]
        assert first == (errors.suggested[row], pytest.approx(errors.p_suggested[row]))


def test_confidences_that_are_not_held_give_the_same_suggestions() -> None:
    drawn = draw(wrong=WRONG, spread=0.25, seed=0)
    held, blocks = drawn.find(), drawn.find(most_values=10)
    np.testing.assert_array_equal(blocks.suggested, held.suggested)
    assert share_of_none(blocks) == pytest.approx(share_of_none(held), abs=0.05)
    assert blocks.p_suggested.sum() == pytest.approx(held.p_suggested.sum(), rel=0.15)
    assert (drawn.judge(blocks) == drawn.judge(held)).mean() > 0.95


@given(seed=st.integers(0, 1000), classes=st.integers(2, 5), each=st.integers(1, 3))
def test_the_suggested_label_is_the_most_confident_other_one(seed: int, classes: int, each: int) -> None:
    random = np.random.default_rng(seed)
    confidences = random.dirichlet(np.ones(classes), size=6).astype(np.float32)
    labels = random.integers(0, classes, (6, each))
    suggested, shares = suggest_labels(confidences, labels)
    for row, column in np.ndindex(6, each):
        others = {c: confidences[row, c] for c in range(classes) if c != labels[row, column]}
        assert suggested[row, column] == max(others, key=others.__getitem__)
        expected = max(others.values()) / max(sum(others.values()), 1e-9)
        assert shares[row, column] == pytest.approx(expected, abs=1e-3)


def test_a_calibration_from_before_decisions_keeps_its_probabilities_of_suggestions() -> None:
    drawn = draw(wrong=WRONG, spread=0.25, seed=0)
    first = drawn.find()
    again = find_label_errors(drawn.features, drawn.labels, count=CLASSES, before=first.calibration)
    assert again.calibration.p_right is first.calibration.p_right
    np.testing.assert_array_equal(again.suggested, first.suggested)
    assert again.p_suggested.sum() == pytest.approx(first.p_suggested.sum(), rel=0.05)


def test_a_machines_decision_keeps_its_doubt_and_a_persons_has_none() -> None:
    drawn = draw(wrong=WRONG, spread=0.25, seed=0)
    undecided = drawn.find()
    p_right = np.full(len(drawn.labels), np.nan)
    p_right[:100], p_right[100:200] = 1, 0.7
    errors = find_label_errors(drawn.features, drawn.labels, count=CLASSES, p_right=p_right)
    np.testing.assert_array_equal(errors.p_error[:100], 0)
    assert errors.p_error[100:200].min() >= 0.3 - 1e-9
    doubtful = undecided.p_error[100:200] > 0.9
    assert doubtful.any()
    assert errors.p_error[100:200][doubtful].min() > 0.7  # the image still counts
