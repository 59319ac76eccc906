"""Peers of label-error detection on the same features: cleanlab, its Datalab, and a vote of the nearest images.

cleanlab gets 5-fold cross-validated logistic regression (L2-normalised features) of several strengths, with all its
scores, adjusted and not; Datalab the same probabilities, and the features alone. Which way is the best of a cell is
picked by the truth, so in their favour.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import normalize

RANKINGS: Mapping[str, Mapping[str, Any]] = {
    "self-confidence": {"method": "self_confidence"},
    "margin": {"method": "normalized_margin"},
    "entropy": {"method": "confidence_weighted_entropy"},
    "self-confidence, adjusted": {"method": "self_confidence", "adjust_pred_probs": True},
    "margin, adjusted": {"method": "normalized_margin", "adjust_pred_probs": True},
}
STRENGTHS = (3.0, 10.0, 30.0)  # C of the regression: on the parts that choose, each of these is the best somewhere
NEIGHBOURS, FOLDS = 20, 5

Ranked = tuple[np.ndarray, np.ndarray]
"""(N,) float32, the higher the more probably wrong; (N,) bool, the labels called wrong."""


def run_peers(features: np.ndarray, labels: np.ndarray) -> dict[str, Ranked]:
    """What each way says of (N,) labels of images with (N, D) features."""
    units, numbers = normalize(features), np.unique(labels, return_inverse=True)[1]
    ways: dict[str, Ranked] = {}
    for strength in STRENGTHS:
        probabilities = cross_validate(units, numbers, strength)
        issues = find_label_issues(numbers, probabilities, n_jobs=1)
        for name, way in RANKINGS.items():
            scores = -get_label_quality_scores(numbers, probabilities, **way)
            ways[f"cleanlab, C={strength:g}, {name}"] = scores, issues
        ways[f"Datalab, C={strength:g}"] = _ask_datalab(numbers, pred_probs=probabilities, features=units)
    ways["Datalab, features alone"] = _ask_datalab(numbers, features=units)
    votes = _vote(units, numbers, count=int(numbers.max()) + 1)
    ways[f"vote of {NEIGHBOURS}"] = -votes[np.arange(len(numbers)), numbers], votes.argmax(axis=1) != numbers
    return {name: (scores.astype(np.float32), called.astype(bool)) for name, (scores, called) in ways.items()}


def cross_validate(units: np.ndarray, labels: np.ndarray, strength: float) -> np.ndarray:
    """(N, C) probabilities of each fifth of the (N, D) unit rows by a logistic regression of the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # classes of fewer images than folds
        model = LogisticRegression(max_iter=100, C=strength)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        return np.asarray(cross_val_predict(model, units, labels, cv=folds, method="predict_proba"))


def _ask_datalab(labels: np.ndarray, **known: np.ndarray) -> Ranked:
    from cleanlab import Datalab  # which takes seconds to load

    lab = Datalab({"label": labels}, label_name="label", verbosity=0)
    lab.find_issues(issue_types={"label": {}}, **known)
    found = lab.get_issues("label")
    return -found["label_score"].to_numpy(), found["is_label_issue"].to_numpy()


def _vote(units: np.ndarray, labels: np.ndarray, *, count: int) -> np.ndarray:
    """(N, C) shares of the nearest other images that have each label."""
    votes = np.zeros((len(labels), count), dtype=np.float32)
    nearest_of_all = min(NEIGHBOURS, len(labels) - 1)
    for start in range(0, len(labels), 2048):
        rows = np.arange(start, min(start + 2048, len(labels)))
        cosines = units[rows] @ units.T
        cosines[np.arange(len(rows)), rows] = -2
        nearest = np.argpartition(-cosines, nearest_of_all - 1, axis=1)[:, :nearest_of_all]
        for column in nearest.T:
            votes[rows, labels[column]] += 1 / nearest_of_all
    return votes
