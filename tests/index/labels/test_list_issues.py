"""The list of label issues of images that were made up."""

import numpy as np
import pytest

from index.labels.issues import WEAK_MODEL, CheckedImages
from index.labels.list_issues import list_label_issues


@pytest.mark.parametrize(("spread", "caution"), [(0.5, None), (8.0, WEAK_MODEL)])
def test_a_model_that_hardly_tells_the_classes_apart_is_named(spread: float, caution: str | None) -> None:
    random, images, classes = np.random.default_rng(0), 900, 60
    labels = np.arange(images) % classes
    vectors = random.normal(size=(classes, 24))[labels] + random.normal(scale=spread, size=(images, 24))
    labels = np.where(random.random(images) < 0.1, random.integers(classes, size=images), labels)
    rows = np.arange(images)
    names = tuple(map(str, range(classes)))
    checked = CheckedImages(vectors.astype(np.float32), labels, rows, rows, np.full(images, np.nan), names)
    issues, _ = list_label_issues(checked)
    assert issues.caution == caution
