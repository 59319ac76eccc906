"""What an audit says once a person has decided."""

from __future__ import annotations

from pathlib import Path

from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision
from tests.training.audits import audited
from training.audit.report import AuditReport, override_verdicts


def test_decisions_take_the_place_of_verdicts_for_every_duplicate_with_that_label() -> None:
    images = (
        audited("a", "cat", sha256="x", verdict=CHANGE, new_label="dog"),
        audited("b", "cat", sha256="x"),
        audited("c", "dog", sha256="x"),
    )
    report = AuditReport(Path("run"), images, (), (), 0.1)
    decisions = {("x", "cat"): LabelDecision("x", "cat", DROP)}
    changed, decided = override_verdicts(report, decisions)
    assert [(i.verdict, i.new_label) for i in changed.images] == [(DROP, None), (DROP, None), (KEEP, None)]
    assert decided == {0, 1}
