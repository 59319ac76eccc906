"""Verdict of a training: what it exports by its answers and its purpose, and answers by --val."""

from dataclasses import replace

import numpy as np
import pytest

from index.evaluation.groups import GroupSources
from index.evaluation.metrics import RetrievalScores
from training.run.searches import KnownImages
from training.run.selecting import judge_by_val
from training.run.verdict import TRAINED, VAL, MethodComparison, Verdict


def _answer(low: float, high: float, rival: str = "raw") -> MethodComparison:
    winner = TRAINED if low > 0 else rival if high < 0 else None
    return MethodComparison(50, 9, {TRAINED: 0.5, rival: 0.5}, rival, winner, (low + high) / 2, (low, high))


AHEAD, LEVEL, BEHIND = _answer(0.1, 0.3), _answer(-0.1, 0.2), _answer(-0.3, -0.1)
FEW = replace(BEHIND, winner=None, difference_interval=None)
WIDTHS = {TRAINED: 8, "raw": 64, "pca": 8}


def _judge(
    known: MethodComparison | None, new: MethodComparison | None, purpose: str = "both", *, chooses: bool = True
) -> Verdict:
    answers = {name: one for name, one in (("known", known), ("new", new)) if one is not None}
    return Verdict(purpose, answers, "nothing was held out", chooses=chooses, widths=WIDTHS)


@pytest.mark.parametrize(
    ("known", "new", "purpose", "outcome", "exported"),
    [
        (AHEAD, AHEAD, "both", "trained", TRAINED),
        (LEVEL, AHEAD, "both", "trained", TRAINED),
        (LEVEL, LEVEL, "both", "cannot tell", TRAINED),
        (BEHIND, LEVEL, "both", "untrained", "raw"),
        (LEVEL, BEHIND, "both", "untrained", "raw"),
        (BEHIND, None, "both", "untrained", "raw"),
        (_answer(-0.3, -0.1, "pca"), BEHIND, "both", "untrained", "raw"),
        (BEHIND, AHEAD, "both", "mixed", TRAINED),
        (AHEAD, BEHIND, "both", "mixed", TRAINED),
        (AHEAD, BEHIND, "known", "trained", TRAINED),
        (AHEAD, BEHIND, "new", "untrained", "raw"),
        (BEHIND, AHEAD, "known", "untrained", "raw"),
        (BEHIND, None, "new", "cannot tell", TRAINED),
        (FEW, None, "both", "cannot tell", TRAINED),
        (None, None, "both", "cannot tell", TRAINED),
    ],
)
def test_an_untrained_embedding_ships_where_it_leads(known, new, purpose: str, outcome: str, exported: str) -> None:
    verdict = _judge(known, new, purpose)
    assert (verdict.outcome, verdict.exported) == (outcome, exported)
    kept = _judge(known, new, purpose, chooses=False)
    assert (kept.outcome, kept.exported) == (outcome, TRAINED)


def _validation(labels: list[str]) -> tuple[KnownImages, dict[str, RetrievalScores]]:
    """Validation images, and scores of a trained embedding that finds the photos of `a` classes alone."""
    features, none = np.ones((len(labels), 2), np.float32), np.full(len(labels), np.nan)
    known = KnownImages(features, labels, labels, GroupSources(labels, none))
    of_a = np.array([label.startswith("a") for label in labels], dtype=np.float64)
    scores = {
        name: RetrievalScores({1: hits}, hits, hits, known.numbers, 0)
        for name, hits in ((TRAINED, of_a), ("raw", 1 - of_a))
    }
    return known, scores


def test_validation_answers_for_the_classes_that_it_shows_and_the_holdout_for_the_others() -> None:
    """Of six classes that train, and six others."""
    known_photos, new_photos = [f"a{n % 6}" for n in range(60)], [f"b{n % 6}" for n in range(60)]
    begun, classes = _judge(LEVEL, LEVEL), sorted(set(known_photos))
    by_known, by_new, by_both = (
        judge_by_val(begun, scores, images, classes=classes, seed=0)
        for images, scores in map(_validation, (known_photos, new_photos, known_photos + new_photos))
    )
    assert (by_known.answers["known"].by, by_known.answers["new"]) == (VAL, LEVEL)
    assert (by_new.answers["known"], by_new.answers["new"].by) == (LEVEL, VAL)
    assert {one.by for one in by_both.answers.values()} == {VAL}
    for verdict, name, winner in ((by_known, "known", TRAINED), (by_new, "new", "raw"), (by_both, "new", "raw")):
        answer = verdict.answers[name]
        assert (answer.queries, answer.classes, answer.winner, abs(answer.difference)) == (60, 6, winner, 1)
    assert by_both.outcome == "mixed"


def test_validation_photos_of_too_few_classes_answer_only_what_nothing_else_does() -> None:
    images, scores = _validation([f"b{n % 4}" for n in range(40)])
    kept, asked = (
        judge_by_val(_judge(LEVEL, new), scores, images, classes=["a0"], seed=0).answers["new"] for new in (LEVEL, None)
    )
    assert kept == LEVEL
    assert (asked.by, asked.winner, asked.difference_interval) == (VAL, None, None)
