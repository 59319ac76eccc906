"""One rule, one verdict."""

from __future__ import annotations

import numpy as np
import pytest

from index.arrays import NO_ID
from index.labels.decisions import CHANGE, DROP, KEEP
from index.labels.judge import Judgement
from index.labels.kinds import CLEAR
from index.labels.suspicion import Suspicion
from index.labels.verdicts import DUPLICATE, SUSPECT, give_verdicts

TYPICAL = 0.8  # the highest confidence of most images
CLEAR_HERE = CLEAR * TYPICAL


def _judgement(confidences: np.ndarray, *, wrong: list[float]) -> Judgement:
    """Of rows that are all labelled 0."""
    best = np.argsort(-confidences, axis=1, kind="stable")
    ranked = np.take_along_axis(confidences, best, axis=1)
    found = Suspicion(np.array(wrong), best, ranked.astype(np.float64), np.zeros(3), (), -np.array(wrong))
    return Judgement(found, confidences[:, 0], ranked[:, 0])


@pytest.mark.parametrize(
    ("confidences", "wrong", "duplicate_of", "expected"),
    [
        ((0.9, 0.05, 0.05), 0.1, NO_ID, (KEEP, NO_ID)),
        ((0.1, 0.8, 0.1), SUSPECT - 0.01, NO_ID, (KEEP, NO_ID)),
        ((0.3, 0.3, 0.2), SUSPECT - 0.01, NO_ID, (KEEP, NO_ID)),  # nothing is clear, but nothing speaks against it
        ((0.1, 0.2, 0.7), SUSPECT, NO_ID, (CHANGE, 2)),
        ((0.1, CLEAR_HERE + 0.001, 0.2), 0.9, NO_ID, (CHANGE, 1)),
        ((0.1, CLEAR_HERE - 0.001, 0.2), 0.9, NO_ID, (DROP, NO_ID)),
        ((0.6, 0.3, 0.1), 0.9, NO_ID, (CHANGE, 1)),  # never to its own label
        ((0.9, 0.05, 0.05), 0.1, 5, (DUPLICATE, NO_ID)),
        ((0.05, 0.9, 0.05), 0.9, 5, (DUPLICATE, NO_ID)),
        ((0.2, 0.2, 0.2), 0.9, 5, (DUPLICATE, NO_ID)),
    ],
)
def test_every_rule_gives_its_verdict(
    confidences: tuple[float, ...], wrong: float, duplicate_of: int, expected: tuple[str, int]
) -> None:
    others = 6 * [(TYPICAL, 0.1, 0.1)]
    table = np.array([confidences, *others], dtype=np.float32)
    verdicts, new = give_verdicts(
        _judgement(table, wrong=[wrong] + 6 * [0.1]),
        np.zeros(7, dtype=np.int64),
        duplicate_of=np.array([duplicate_of] + 6 * [NO_ID]),
        rare=np.zeros(7, dtype=bool),
    )
    assert (verdicts[0], new[0]) == expected
    assert verdicts[1:] == 6 * [KEEP]
    assert (new[1:] == NO_ID).all()
    assert new.dtype == np.int64


def test_what_is_clear_is_measured_by_what_is_usual_in_the_run() -> None:
    """With hundreds of classes no confidence comes near one half."""
    confidences = np.array([[0.08, 0.01, 0.02], [0.08, 0.01, 0.02], [0.01, 0.05, 0.02]], dtype=np.float32)
    verdicts, new = give_verdicts(
        _judgement(confidences, wrong=[0.1, 0.1, 0.9]),
        np.zeros(3, dtype=np.int64),
        duplicate_of=np.full(3, NO_ID),
        rare=np.zeros(3, dtype=bool),
    )
    assert (verdicts[2], new[2]) == (CHANGE, 1)


def test_no_image_is_taken_unseen_from_a_label_that_has_few() -> None:
    confidences = np.tile(np.array([0.1, 0.8, 0.1], dtype=np.float32), (3, 1))
    verdicts, new = give_verdicts(
        _judgement(confidences, wrong=[0.9, 0.9, 0.9]),
        np.zeros(3, dtype=np.int64),
        duplicate_of=np.array([NO_ID, 5, NO_ID]),
        rare=np.array([True, True, False]),
    )
    assert verdicts == [KEEP, DUPLICATE, CHANGE]
    assert new.tolist() == [NO_ID, NO_ID, 1]
