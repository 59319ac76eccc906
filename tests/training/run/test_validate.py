"""Scores on images that do not train: leave-one-out, and queries beside a gallery."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.errors import InputError
from index.evaluation.metrics import DEFAULT_KS
from training.run.validate import ValidationSet


def _rows(count: int, *, seed: int) -> np.ndarray:
    return normalise_rows(np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32))


@given(seed=st.integers(0, 1000), count=st.integers(6, 30))
@settings(max_examples=40, deadline=None)
def test_queries_search_the_gallery_alone(seed: int, count: int) -> None:
    rows, dice = _rows(count, seed=seed), np.random.default_rng(seed)
    labels = dice.integers(3, size=count)
    is_gallery = dice.random(count) < 0.6
    gallery = np.flatnonzero(is_gallery)
    hits: dict[int, list[bool]] = {1: [], 3: []}
    lone = 0
    for query in np.flatnonzero(~is_gallery):
        if labels[query] not in labels[gallery]:
            lone += 1
            continue
        ranked = labels[gallery[np.argsort(-(rows[gallery] @ rows[query]), kind="stable")]]
        for k, found in hits.items():
            found.append(bool((ranked[:k] == labels[query]).any()))
    validation = ValidationSet(rows, labels, is_gallery, ks=(1, 3))
    if not hits[1]:
        with pytest.raises(InputError):
            validation.score(rows)
        return
    scores = validation.score(rows)
    assert scores.recall == {k: np.mean(found) for k, found in hits.items()}
    assert (scores.queries, scores.lone_queries) == (len(hits[1]), lone)


def test_without_a_gallery_each_image_is_asked_among_all_others() -> None:
    rows, labels = _rows(20, seed=0), np.arange(20) % 4
    scores = ValidationSet(rows, labels).score(rows)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    assert scores.recall[1] == np.mean(labels[cosines.argmax(axis=1)] == labels)
    assert scores.queries == 20
    assert tuple(scores.recall) == DEFAULT_KS
