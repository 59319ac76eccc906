"""What a report says of beliefs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from training.run.belief_report import summarise_beliefs

LABELS = np.repeat(np.arange(4), [40, 40, 5, 2])
WEIGHTS = np.select([LABELS == 0, LABELS == 1, LABELS == 2], [0.9, 0.7, 0.2], 0.5).astype(np.float32)
CLASSES = ["dress", "shirt", "hat", "body", "empty"]


def test_weights_are_averaged_by_image_by_class_and_by_class_size() -> None:
    found = summarise_beliefs(WEIGHTS, LABELS, classes=CLASSES)
    assert json.loads(json.dumps(found)) == found
    assert found["mean_weight"] == pytest.approx(float(WEIGHTS.mean()))
    assert [band["images"] for band in found["by_class_size"]] == [[40, 40], [2, 5]]
    assert [band["mean_weight"] for band in found["by_class_size"]] == pytest.approx([0.8, 0.35])
    assert [(one["class"], one["images"]) for one in found["least_believed"]] == [
        ("hat", 5), ("body", 2), ("shirt", 40), ("dress", 40),
    ]  # fmt: skip
