"""Page of an audit, on which a person decides about label issues: one HTML file that needs no network."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from index.items import Place
from index.labels.decisions import DECISIONS, KEEP, LabelDecision
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from retrieval_app.reports.standalone import draw_thumbnails, write_document
from training.audit.report import AuditReport, Neighbour, issue_order

ISSUE_SIDE, NEIGHBOUR_SIDE = 192, 96
"""Longest side of the images, in pixels: of the images to decide on, and of those shown only beside them."""
NEIGHBOURS_SHOWN = 3
"""Of either kind: with the same label, and with another."""


def write_audit_page(
    report: AuditReport,
    out: Path,
    *,
    limit: int,
    decisions: Iterable[LabelDecision] = (),
    progress: Progress = no_progress,
) -> int:
    """Write the page of an audit into one HTML file; how many images can be decided on there.

    An image that cannot be read any more, or that is not the one audited, is shown as a placeholder.

    Args:
        out: the file; it is replaced in one step.
        limit: most images shown: those whose verdict is not to keep the label first, then by `p_error`.
        decisions: made before; what is decided in the browser later goes before them.

    Raises:
        InputError: the file cannot be written.
    """
    order = sorted(
        range(len(report.images)),
        key=lambda row: (report.images[row].verdict == KEEP, *issue_order(report.images[row]), row),
    )
    cards = _Cards(report)
    items = [cards.add(row) for row in order[:limit]]
    pictures, gone = draw_thumbnails(cards.places, sides=cards.sides, progress=progress)
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(item["path"])) for item in items] or ["."])
    for item in items:
        item["name"] = os.path.relpath(item["path"], folder)
    labels = {image.label for image in report.images} | {noise.label for noise in report.classes}
    labels.update(label for image in report.images for label, _ in image.suggestions)
    verdicts = Counter(image.verdict for image in report.images)
    pairs, panels = _draw_panels(report, items)
    of_page = Counter(item["verdict"] for item in items)
    of_page.update(issues=len(items) - of_page[KEEP], all=len(items))
    drawn_only = {"name", "picture", "probabilities", "agreeing", "disagreeing"}  # of which the script needs none
    made = [(valid_text(d.path), d.sha256, d.label, d.decision, d.new_label or "") for d in decisions]
    data = {
        "key": hashlib.sha256(os.fsencode(str(report.run.resolve()))).hexdigest()[:16],
        "items": [{name: value for name, value in item.items() if name not in drawn_only} for item in items],
        "pairs": pairs,
        "shown": {label: printable_path(label) for label in labels if not label.isprintable()},
        "pictures": pictures,
        "decisions": made,
    }
    write_document(
        out,
        "audit.html",
        script="audit.js",
        data=data,
        run=report.run.resolve().name,
        total=len(report.images),
        noise_rate=report.noise_rate,
        confused_classes=report.confused_classes,
        items=items,
        gone=gone,
        verdicts={verdict: verdicts[verdict] for verdict in DECISIONS},
        labels=sorted(labels),
        panels=panels,
        counts=of_page,
        threshold=0,
        no_promise=report.no_promise,
    )
    return len(items)


class _Cards:
    """The images to decide on with their neighbours, and the place of each image, one for each content."""

    def __init__(self, report: AuditReport) -> None:
        self._report = report
        self._numbers: dict[str, int] = {}  # SHA-256 -> number of the image
        self.places: list[Place] = []
        self.sides: list[int] = []

    def add(self, row: int) -> dict[str, Any]:
        """What the page shows of an image."""
        audited = self._report.images[row]
        twin = audited.duplicate_of
        others = [other for other in audited.disagreeing if other[0] != twin]
        if twin is not None:  # it is the nearest there can be
            others.insert(0, (twin, 1.0))
        suggestions = [label for label, _ in audited.suggestions]
        if audited.new_label is not None and audited.new_label not in suggestions:
            suggestions.insert(0, audited.new_label)
        return {
            "path": valid_text(str(audited.path)),
            "sha256": audited.sha256,
            "label": audited.label,
            "picture": self._number(row, side=ISSUE_SIDE),
            "p_error": round(audited.p_error, 4),
            "p_none": round(audited.p_none, 4),
            "p_suggested": round(audited.p_suggested, 4),
            "confidence": round(audited.confidence, 4),
            "verdict": audited.verdict,
            "kind": audited.kind,
            "new_label": audited.new_label,
            "suggestions": suggestions,
            "suggested": audited.new_label or next((label for label in suggestions if label != audited.label), None),
            "probabilities": [(label, round(share, 4)) for label, share in audited.suggestions],
            "agreeing": self._describe(audited.agreeing),
            "disagreeing": self._describe(others, twin=twin),
        }

    def _describe(self, neighbours: Iterable[Neighbour], *, twin: int | None = None) -> list[dict[str, Any]]:
        shown = [(row, cosine, self._report.images[row]) for row, cosine in islice(neighbours, NEIGHBOURS_SHOWN)]
        return [
            {
                "picture": self._number(row, side=NEIGHBOUR_SIDE),
                "label": image.label,
                "path": str(image.path),
                "cosine": cosine,
                "is_twin": row == twin,
            }
            for row, cosine, image in shown
        ]

    def _number(self, row: int, *, side: int) -> int:
        audited = self._report.images[row]
        number = self._numbers.setdefault(audited.sha256, len(self.places))
        if number == len(self.places):
            self.places.append(Place(audited.path, printable_path(str(audited.path)), sha256=audited.sha256))
            self.sides.append(side)
        self.sides[number] = max(self.sides[number], side)
        return number


def _draw_panels(report: AuditReport, items: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[Any]]:
    """The (label, suggested) that panels filter by, and the panels: classes, and confusions."""
    estimated = {(pair.label, pair.suggested): pair for pair in report.pairs}
    here = Counter((item["label"], item["suggested"]) for item in items if item["suggested"] is not None)
    confusions = sorted(
        {**estimated, **here}, key=lambda pair: (-(estimated[pair].images if pair in estimated else 0), -here[pair])
    )
    pairs = [(noise.label, "") for noise in report.classes] + confusions
    classes = [(number, noise.label, f"{100 * noise.noise_rate:.0f} %") for number, noise in enumerate(report.classes)]
    figures = [
        f"{estimated[pair].images:.0f} · {100 * estimated[pair].noise_rate:.0f} %" if pair in estimated else "–"
        for pair in confusions
    ]
    lines = [
        (len(classes) + number, " → ".join(pair), figure)
        for number, (pair, figure) in enumerate(zip(confusions, figures, strict=True))
    ]
    return pairs, [
        ("Classes", "estimated share of wrong labels", classes),
        ("Confusions", "given → shown, estimated images", lines),
    ]
