"""One rule, one verdict."""

from __future__ import annotations

import numpy as np
import pytest

from index.exact import NO_ID
from training.audit_report import DUPLICATE, KEEP, NO_CLASS, RELABEL
from training.verdicts import CLEAR, SUSPECT, give_verdicts


@pytest.mark.parametrize(
    ("confidences", "wrong", "duplicate_of", "expected"),
    [
        ((0.9, 0.1, 0.1), 0.1, NO_ID, (KEEP, NO_ID)),
        ((0.1, 0.9, 0.1), SUSPECT - 0.01, NO_ID, (KEEP, NO_ID)),
        ((0.1, 0.2, 0.9), SUSPECT, NO_ID, (RELABEL, 2)),
        ((0.1, CLEAR, 0.2), 0.9, NO_ID, (RELABEL, 1)),
        ((0.9, CLEAR, 0.2), 0.9, NO_ID, (RELABEL, 1)),  # never to its own label
        ((0.1, CLEAR - 0.01, 0.2), 0.9, NO_ID, (NO_CLASS, NO_ID)),
        ((0.9, 0.1, 0.1), 0.1, 5, (DUPLICATE, NO_ID)),
        ((0.1, 0.9, 0.1), 0.9, 5, (DUPLICATE, NO_ID)),
    ],
)
def test_every_rule_gives_its_verdict(
    confidences: tuple[float, ...], wrong: float, duplicate_of: int, expected: tuple[str, int]
) -> None:
    verdicts, new = give_verdicts(
        np.array([confidences], dtype=np.float32),
        np.array([0]),
        wrong=np.array([wrong]),
        duplicate_of=np.array([duplicate_of]),
    )
    assert (verdicts[0], new[0]) == expected
    assert new.dtype == np.int64
