"""One rule, one verdict."""

import numpy as np
import pytest

from index.arrays import NO_ID
from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.kinds import LIKELY_ERROR, compare_duplicates, give_verdicts, recommend_threshold
from index.labels.label_errors import LabelErrors
from index.labels.simulated_noise import ScoreCalibration


def _give(
    confidences: np.ndarray, wrong: list[float], *, none: float = 0.0, **given: list[int]
) -> tuple[list[str], np.ndarray]:
    """Verdicts, and new labels; by default every row is labelled 0, alone in its group, and its label not rare."""
    count = len(wrong)
    groups, rare = np.array(given.get("groups", range(count))), np.array(given.get("rare", [False] * count))
    labels = np.array(given.get("labels", [0] * count))
    best, errors = np.argsort(-confidences, axis=1, kind="stable"), np.array(wrong)
    ranked = np.take_along_axis(confidences, best, axis=1)
    calibration = ScoreCalibration(-errors, errors, ranked[:, 0], np.full(count, none))
    found = LabelErrors(calibration, best, ranked.astype(np.float64), np.zeros(3), (), confidences[:, 0])
    return give_verdicts(found, labels, groups=groups, rare=rare)


@pytest.mark.parametrize(
    ("confidences", "wrong", "none", "expected"),
    [
        ((0.9, 0.05, 0.05), 0.1, 0.0, (KEEP, NO_ID)),
        ((0.1, 0.8, 0.1), LIKELY_ERROR - 0.01, 0.0, (KEEP, NO_ID)),
        ((0.3, 0.3, 0.2), LIKELY_ERROR - 0.01, 1.0, (KEEP, NO_ID)),  # it may show nothing, but its label is likelier
        ((0.1, 0.2, 0.7), LIKELY_ERROR, 0.0, (CHANGE, 2)),
        ((0.1, 0.45, 0.2), 0.9, 0.49, (CHANGE, 1)),
        ((0.1, 0.45, 0.2), 0.9, 0.51, (DROP, NO_ID)),
        ((0.6, 0.3, 0.1), 0.9, 0.3, (CHANGE, 1)),  # never to its own label
    ],
)
def test_each_rule_and_its_verdict(
    confidences: tuple[float, ...], wrong: float, none: float, expected: tuple[str, int]
) -> None:
    others = 6 * [(0.8, 0.1, 0.1)]
    table = np.array([confidences, *others], dtype=np.float32)
    verdicts, new = _give(table, [wrong] + 6 * [0.1], none=none)
    assert (verdicts[0], new[0]) == expected
    assert verdicts[1:] == 6 * [KEEP]
    assert (new[1:] == NO_ID).all()
    assert new.dtype == np.int64


def test_no_image_is_taken_unseen_from_a_label_that_has_few() -> None:
    confidences = np.tile(np.array([0.1, 0.8, 0.1], dtype=np.float32), (3, 1))
    verdicts, new = _give(confidences, [0.9, 0.9, 0.9], rare=[True, True, False])
    assert verdicts == [KEEP, KEEP, CHANGE]
    assert new.tolist() == [NO_ID, NO_ID, 1]


@pytest.mark.parametrize(
    ("labels", "confidences", "decided", "lose"),
    [
        (["cat", "dog"], [0.2, 0.7], [], [0]),
        (["cat", "dog"], [0.5, 0.5], [], [1]),  # one always stays
        (["cat", "cat", "dog"], [0.8, 0.1, 0.5], [], [2]),  # of one label all do
        (["cat", "cat"], [0.1, 0.2], [], []),
        (["cat", "dog"], [0.2, 0.7], [0], [1]),
        (["dog", "dog"], [0.2, 0.7], [0], []),
        ([None, "dog"], [0.2, 0.7], [0], []),  # a person dropped the first
        (["cat", "dog"], [0.2, 0.7], [0, 1], []),
        (["lynx", "dog"], [0.2, 0.7], [], []),  # of a rare label none is lost unseen
        (["lynx", "dog"], [0.2, 0.7], [1], [0]),
    ],
)
def test_of_near_duplicates_with_different_labels_the_most_credible_label_stays(
    labels: list[str | None], confidences: list[float], decided: list[int], lose: list[int]
) -> None:
    stays, loses = compare_duplicates(
        [*labels, "owl"],
        np.array([0] * len(labels) + [1]),
        confidences=np.array([*confidences, 0.1], dtype=np.float32),
        decided=np.isin(np.arange(len(labels) + 1), decided),
        rare=np.array([label == "lynx" for label in labels] + [False]),
    )
    assert np.flatnonzero(loses).tolist() == lose
    assert not (stays & loses).any()


def test_a_copy_with_another_label_is_dropped_and_the_credible_one_is_kept() -> None:
    """However likely wrong the judge finds the label that stays: at most one of the two is taken away."""
    confidences = np.array([[0.3, 0.6, 0.1], [0.1, 0.6, 0.3], [0.6, 0.1, 0.1]], dtype=np.float32)
    verdicts, new = _give(confidences, [0.9, 0.95, 0.1], labels=[0, 1, 0], groups=[0, 0, 1])
    assert verdicts == [KEEP, DROP, KEEP]
    assert (new == NO_ID).all()


@pytest.mark.parametrize(
    ("probabilities", "threshold"),
    [
        ([0.96] * 20 + [0.6903] * 40 + [0.6536] * 40 + [0.47], 0.65),
        ([0.9] * 10 + [0.6100] * 100, 0.9),  # of all together fewer than seven in ten would be right
        ([1.0] * 100 + [0.59], 1.0),
        ([0.9] * 10 + [0.655] * 40 + [0.651] * 200, 0.655),  # .65 would reach the next step
        ([0.65] * 10, 0.7),
        ([], 0.7),
    ],
)
def test_the_recommended_threshold_is_that_of_a_whole_step(probabilities: list[float], threshold: float) -> None:
    assert recommend_threshold(probabilities) == threshold
