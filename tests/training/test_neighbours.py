"""The nearest with the same label and with another one, against a plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from index.exact import NO_ID
from training.neighbours import Nearest, find_agreeing, find_disagreeing
from training.projection import normalise_rows


def _plain(unit: np.ndarray, labels: np.ndarray, *, k: int, same: bool) -> list[list[int]]:
    """Rows in falling cosine, ties by row, one image at a time."""
    found = []
    for row in range(len(labels)):
        others = [r for r in range(len(labels)) if r != row and (labels[r] == labels[row]) == same]
        cosine = {r: np.float32(unit[r].astype(np.float64) @ unit[row].astype(np.float64)) for r in others}
        found.append(sorted(others, key=lambda r: (-cosine[r], r))[:k])
    return found


def _rows(nearest: Nearest) -> list[list[int]]:
    assert ((nearest.rows == NO_ID) == np.isneginf(nearest.cosines)).all()
    return [[row for row in rows if row != NO_ID] for rows in nearest.rows.tolist()]


@settings(deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_nearest_of_either_kind_are_those_of_a_plain_search(labels: list[int], k: int, seed: int) -> None:
    numbers = np.array(labels, dtype=np.int64)
    corners = np.random.default_rng(seed).integers(0, 2, size=(len(labels), 4))  # many ties
    unit = normalise_rows(corners.astype(np.float32))
    assert _rows(find_agreeing(unit, numbers, k=k)) == _plain(unit, numbers, k=k, same=True)
    assert _rows(find_disagreeing(unit, numbers, k=k)) == _plain(unit, numbers, k=k, same=False)
