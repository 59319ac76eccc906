"""Verdicts on labels: the threshold for a share of right labels, the rules, rare labels and near-duplicates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.arrays import NO_ID
from index.labels.decisions import CHANGE, DROP, KEEP, SET_ASIDE
from index.labels.kinds import LIKELY_ERROR
from index.labels.label_errors import LabelErrors
from index.labels.simulated_noise import ErrorCalibration
from index.labels.verdicts import (
    LEAST_LABELS,
    LEAST_LOOK_ALIKES,
    choose_threshold,
    choose_verdicts,
    compare_duplicates,
    expect_right,
    give_verdicts,
    why_no_promise,
)

SHARES = st.floats(0, 1, allow_nan=False)


def _give(
    p_error: list[float],
    p_suggested: list[float],
    none: list[float],
    *,
    own: list[float] | None = None,
    at_least_right: float = 0.8,
    **given: list[int],
) -> tuple[list[str], np.ndarray]:
    """Verdicts, and new labels; by default every row is labelled 0, label 1 is suggested, and all are alone."""
    count = len(p_error)
    groups, rare = np.array(given.get("groups", range(count))), np.array(given.get("rare", [False] * count))
    labels = np.array(given.get("labels", [0] * count))
    decided = np.isin(np.arange(count), given.get("decided", []))
    confidences = np.array([1 - p for p in p_error] if own is None else own, dtype=np.float32)
    errors = np.array(p_error)
    calibration = ErrorCalibration(-errors, errors, confidences, np.zeros(count))
    suggested, shares = np.ones(count, dtype=np.int64), np.array(p_suggested)
    best, chances = np.stack([suggested, labels], axis=1), np.stack([shares, 1 - errors], axis=1)
    found = LabelErrors(
        calibration, errors, suggested, shares, np.array(none), best, chances, np.zeros(3), (), confidences
    )
    return give_verdicts(
        found, labels, groups=groups, rare=rare.astype(bool), decided=decided, at_least_right=at_least_right
    )


@given(p_best=st.lists(SHARES, max_size=20), fixed=st.lists(SHARES, max_size=5), share=st.floats(0.5, 0.999))
def test_the_threshold_is_the_lowest_of_that_share(p_best: list[float], fixed: list[float], share: float) -> None:
    threshold = choose_threshold(np.array(p_best), share, fixed=np.array(fixed))
    reached = {
        least: np.mean([*fixed, *(p for p in p_best if p >= least)]) >= share - 1e-8
        for least in p_best
        if least >= LIKELY_ERROR
    }
    if any(reached.values()):
        assert threshold == min(least for least, is_reached in reached.items() if is_reached)
    else:
        assert threshold == share


@given(rows=st.lists(st.tuples(SHARES, SHARES, SHARES), min_size=1, max_size=30), threshold=st.floats(0.5, 1))
def test_no_verdict_goes_against_what_is_likelier(rows: list[tuple[float, float, float]], threshold: float) -> None:
    p_label, p_suggested, p_none = np.array(rows).T
    verdicts = choose_verdicts(p_label, p_suggested, p_none, threshold=threshold)
    for verdict, own, other, none in zip(verdicts, p_label, p_suggested, p_none, strict=True):
        assert (verdict == DROP) == (none > max(own, other) and none >= 0.5)
        if verdict == CHANGE:
            assert other > own
            assert other >= threshold
        if verdict == KEEP:
            assert own >= max(other, threshold)
        if verdict == SET_ASIDE:
            assert max(own, other) < threshold or none > max(own, other)


@pytest.mark.parametrize(
    ("p_error", "p_suggested", "none", "expected"),
    [
        (0.1, 0.05, 0.0, (KEEP, NO_ID)),
        (0.9, 0.85, 0.0, (CHANGE, 1)),
        (0.9, 0.55, 0.2, (CHANGE, 1)),
        (0.9, 0.3, 0.25, (SET_ASIDE, NO_ID)),  # of both labels none is probable
        (0.55, 0.3, 0.1, (SET_ASIDE, NO_ID)),
        (0.45, 0.4, 0.0, (KEEP, NO_ID)),
        (0.9, 0.3, 0.6, (DROP, NO_ID)),
        (0.9, 0.42, 0.41, (SET_ASIDE, NO_ID)),
    ],
)
def test_rules_give_their_verdicts(p_error: float, p_suggested: float, none: float, expected: tuple[str, int]) -> None:
    others = [0.0] * 6
    verdicts, new = _give([p_error, *others], [p_suggested, *others], [none, *others])
    assert (verdicts[0], new[0]) == expected
    assert verdicts[1:] == 6 * [KEEP]
    assert (new[1:] == NO_ID).all()
    assert new.dtype == np.int64


def test_doubtful_labels_are_set_aside_only_as_far_as_the_share_demands() -> None:
    p_error = [0.0] * 16 + [0.2, 0.3, 0.4, 0.45]
    for share, aside in ((0.9, 0), (0.95, 1), (0.96, 2), (0.99, 4)):
        verdicts, _ = _give(p_error, [0.0] * 20, [0.0] * 20, at_least_right=share)
        assert verdicts == [KEEP] * (20 - aside) + [SET_ASIDE] * aside


def test_rare_and_decided_labels_stay_however_improbable_they_are() -> None:
    verdicts, new = _give(
        [0.9, 0.9, 0.9, 0.9, 0.0],
        [0.9, 0.0, 0.9, 0.9, 0.0],
        [0.0, 0.9, 0.0, 0.0, 0.0],
        rare=[1, 1, 0, 0, 0],
        decided=[2],
        at_least_right=0.5,
    )
    assert verdicts == [KEEP, KEEP, KEEP, CHANGE, KEEP]
    assert new.tolist() == [NO_ID, NO_ID, NO_ID, 1, NO_ID]


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


def test_a_near_duplicate_with_a_less_probable_label_is_dropped_and_the_other_stays_where_it_is_likely() -> None:
    rest = [0.0] * 4
    for p_error, stays in ((0.3, KEEP), (0.9, SET_ASIDE)):  # 30 % would be too doubtful for an image of its own
        verdicts, new = _give(
            [p_error, 0.95, *rest],
            [0.0] * 6,
            [0.0] * 6,
            own=[0.3, 0.1, 0.6, 0.6, 0.6, 0.6],
            labels=[0, 1, 0, 0, 0, 0],
            groups=[0, 0, 1, 2, 3, 4],
            at_least_right=0.99,
        )
        assert verdicts == [stays, DROP, *[KEEP] * 4]
        assert (new == NO_ID).all()


@given(images=st.integers(1, 10_000), share=SHARES)
def test_the_interval_of_the_expected_share_holds_it(images: int, share: float) -> None:
    expected = expect_right(images, share * images)
    assert 0 <= expected.low <= expected.share <= expected.high <= 1
    assert expected.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("labels", "look_alikes", "classes", "is_lower_bound", "is_promised"),
    [
        (LEAST_LABELS, LEAST_LOOK_ALIKES, 3, False, True),
        (LEAST_LABELS, None, 3, False, True),
        (LEAST_LABELS - 1, 1.0, 3, False, False),
        (LEAST_LABELS, LEAST_LOOK_ALIKES - 0.01, 3, False, False),
        (LEAST_LABELS, 1.0, 2, False, False),
        (LEAST_LABELS, 1.0, 3, True, False),
    ],
)
def test_a_share_is_promised_only_where_the_estimate_can_be_trusted(
    labels: int, look_alikes: float | None, classes: int, is_lower_bound: bool, is_promised: bool
) -> None:
    why = why_no_promise(labels=labels, look_alikes=look_alikes, classes=classes, is_lower_bound=is_lower_bound)
    assert (why is None) is is_promised
