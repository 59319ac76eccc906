"""What an audit of labels says: one row an image, one line a class and a pair of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from index.labels.decisions import LabelDecision, LabelKey
from index.labels.kinds import Kind


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another training image: its row in the audit, and its cosine to the one looked at."""

    row: int
    cosine: float


@dataclass(frozen=True, slots=True)
class AuditedImage:
    """One training image and what the audit thinks of its label.

    Attributes:
        wrong: chance that the label is wrong, 0..1; rows are ranked by it.
        confidence: leave-one-out confidence in the label, 0..1: from all images but this one and its duplicates.
        suggestions: the (label, chance that the image shows it) of the likeliest classes, its own among them or not,
            best first, three at most.
        verdict: of `index.labels.decisions.DECISIONS`.
        new_label: what `change` would make of it; None for the other verdicts.
        agreeing, disagreeing: nearest other images with the same and with another label, nearest first.
        duplicate_of: row of the image with another label that shows the same picture; None without.
        kind: of trouble, of `index.labels.kinds`; None where the label is likely right and no copy has another one.
    """

    path: Path
    sha256: str
    label: str
    wrong: float
    confidence: float
    suggestions: tuple[tuple[str, float], ...]
    verdict: str
    new_label: str | None
    agreeing: tuple[Neighbour, ...]
    disagreeing: tuple[Neighbour, ...]
    duplicate_of: int | None
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class ClassNoise:
    """Of the `images` with this label, the estimated share (0..1) whose label is wrong."""

    label: str
    images: int
    noise_rate: float


@dataclass(frozen=True, slots=True)
class PairNoise:
    """Of the images labelled `label`, the estimated share (0..1) that show `suggested`, and how many that is."""

    label: str
    suggested: str
    noise_rate: float
    images: float


@dataclass(frozen=True, slots=True)
class AuditReport:
    """A whole audit.

    Attributes:
        images: in the order of the run's labels.csv.
        classes: the noisiest first.
        pairs: the most images first; pairs with an estimate below half an image are left out.
        noise_rate: estimated share of all labels that are wrong, 0..1.
        mixed: (label, label, images) that are given in each other's place, the most images first.
        is_lower_bound: whether more labels are wrong than that: the backbone was trained with them.
    """

    run: Path
    images: tuple[AuditedImage, ...]
    classes: tuple[ClassNoise, ...]
    pairs: tuple[PairNoise, ...]
    noise_rate: float
    mixed: tuple[tuple[str, str, float], ...] = ()
    is_lower_bound: bool = False


def suspicion_order(image: AuditedImage) -> tuple[float, float]:
    """Sort key: the most suspicious image first, of those as likely wrong the one of least confidence."""
    return -image.wrong, image.confidence


def override_verdicts(
    report: AuditReport, decisions: Mapping[LabelKey, LabelDecision]
) -> tuple[AuditReport, frozenset[int]]:
    """The report with what was decided in the place of its own verdicts, and the rows decided about."""
    images, decided = list(report.images), []
    for row, image in enumerate(images):
        decision = decisions.get((image.sha256, image.label))
        if decision is not None:
            images[row] = replace(image, verdict=decision.decision, new_label=decision.new_label)
            decided.append(row)
    return replace(report, images=tuple(images)), frozenset(decided)
