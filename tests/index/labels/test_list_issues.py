"""The list of label issues of images that were made up."""

from dataclasses import replace

import numpy as np
import pytest

from index.labels.issues import WEAK_MODEL, CheckedImages
from index.labels.list_issues import list_label_issues


@pytest.mark.parametrize(("spread", "caution"), [(0.5, None), (8.0, WEAK_MODEL)])
def test_a_model_that_hardly_tells_the_classes_apart_is_named(spread: float, caution: str | None) -> None:
    random, images, classes = np.random.default_rng(0), 1200, 60
    labels = np.arange(images) % classes
    vectors = random.normal(size=(classes, 24))[labels] + random.normal(scale=spread, size=(images, 24))
    labels = np.where(random.random(images) < 0.1, random.integers(classes, size=images), labels)
    rows = np.arange(images)
    names = tuple(map(str, range(classes)))
    checked = CheckedImages(vectors.astype(np.float32), labels, rows, rows, np.full(images, np.nan), names, rows)
    issues, _ = list_label_issues(checked)
    assert issues.caution == caution
    assert ("most of the labels that it lists are right" in (replace(issues, look_alikes=None).no_promise or "")) == (
        caution == WEAK_MODEL
    )


@pytest.mark.parametrize(("is_shot", "verdict"), [(False, "drop"), (True, "change")])
def test_another_shot_with_a_wrong_label_is_changed_and_a_copy_is_dropped(is_shot: bool, verdict: str) -> None:
    random, images, classes = np.random.default_rng(0), 1200, 12
    rows = np.arange(images)
    labels = rows % classes
    vectors = 4 * random.normal(size=(classes, 24))[labels] + random.normal(size=(images, 24))
    labels = np.where(random.random(images) < 0.1, random.integers(classes, size=images), labels)
    labels[0], labels[24] = 0, 5  # both show class 0
    groups = np.where(rows == 24, 0, rows)
    checked = CheckedImages(
        vectors.astype(np.float32),
        labels,
        rows,
        groups,
        np.full(images, np.nan),
        tuple(map(str, range(classes))),
        rows if is_shot else groups,
    )
    issues, _ = list_label_issues(checked)
    found = issues.find(24)
    assert found is not None
    assert (found.verdict, found.suggested) == (verdict, "0")
