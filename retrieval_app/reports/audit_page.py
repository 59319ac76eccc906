"""Page of an audit, on which a person decides about label issues: one HTML file that needs no network."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from index.items import Place
from index.labels.decisions import CHANGE, DECISIONS
from index.labels.issues import NEIGHBOURS, LabelIssue, LabelIssues
from index.labels.verdicts import UNDECIDED, VERDICTS
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from retrieval_app.reports.standalone import draw_thumbnails, write_document

ISSUE_SIDE, NEIGHBOUR_SIDE = 192, 96
"""Longest side of the images, in pixels: of the images to decide on, and of those shown only beside them."""
_DRAWN_ONLY = {"name", "picture", "probabilities", "agreeing", "disagreeing"}  # which the script does not need


def write_audit_page(
    audited: LabelIssues, out: Path, *, run: Path, limit: int, progress: Progress = no_progress
) -> None:
    """Write the page of a run's audit, with the `limit` most suspicious images."""
    order = sorted(audited.items, key=lambda one: (one.verdict in UNDECIDED, -one.p_error, one.confidence, one.id))
    cards = _Cards(audited.items)
    items = [cards.add(image) for image in order[:limit]]
    pictures, gone = draw_thumbnails(cards.places, sides=cards.sides, progress=progress)
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(item["path"])) for item in items] or ["."])
    for item in items:
        item["name"] = os.path.relpath(item["path"], folder)
    labels = {image.label or "" for image in audited.items} | {label for label, *_ in audited.classes}
    labels.update(label for image in audited.items for label, _ in image.suggestions)
    counts = Counter(item["verdict"] for item in items)
    counts.update(issues=sum(not item["is_undecided"] for item in items), all=len(items))
    pairs, panels = _draw_panels(audited, items)
    decided = {image.key: image.decision for image in audited.items if image.decision is not None}
    write_document(
        out,
        "audit.html",
        script="audit.js",
        data={
            "known_decisions": DECISIONS,
            "key": hashlib.sha256(os.fsencode(str(run.resolve()))).hexdigest()[:16],
            "items": [{name: value for name, value in item.items() if name not in _DRAWN_ONLY} for item in items],
            "pairs": pairs,
            "shown": {label: printable_path(label) for label in labels if not label.isprintable()},
            "pictures": pictures,
            "decisions": [  # the rows of decisions.csv
                (valid_text(made.path), made.sha256, made.label, made.decision, made.new_label or "")
                for made in decided.values()
            ],
        },
        run=run.resolve().name,
        total=len(audited.items),
        noise_rate=audited.noise_rate,
        confused_classes=audited.confused_classes,
        items=items,
        gone=gone,
        verdicts=audited.count_outcomes(),
        labels=sorted(labels),
        panels=panels,
        filters=["issues", *sorted(VERDICTS, key=UNDECIDED.__contains__), "all"],
        counts=counts,
        threshold=0,
        no_promise=audited.no_promise,
    )


class _Cards:
    """The images to decide on with their neighbours, and the place of each image, one for each content."""

    def __init__(self, images: Sequence[LabelIssue]) -> None:
        self._images = images
        self._numbers: dict[str, int] = {}  # SHA-256 -> number of the image
        self.places: list[Place] = []
        self.sides: list[int] = []

    def add(self, image: LabelIssue) -> dict[str, Any]:
        """What the page shows of an image."""
        twin = image.duplicate_of
        others = [(row, cosine) for row, cosine, _ in image.disagreeing if row != twin]
        if twin is not None:  # it is the nearest there can be
            others.insert(0, (twin, 1.0))
        return {
            "path": valid_text(image.path),
            "sha256": image.sha256,
            "label": image.label,
            "picture": self._number(image, side=ISSUE_SIDE),
            "p_error": round(image.p_error, 4),
            "p_none": round(image.p_none, 4),
            "p_suggested": round(image.p_suggested, 4),
            "confidence": round(image.confidence, 4),
            "verdict": image.verdict,
            "is_undecided": image.verdict in UNDECIDED,
            "kind": image.kind,
            "new_label": image.suggested if image.verdict == CHANGE else None,
            "suggestions": [label for label, _ in image.suggestions],
            "suggested": image.suggested,
            "probabilities": [(label, round(share, 4)) for label, share in image.suggestions],
            "agreeing": self._describe(image.agreeing),
            "disagreeing": self._describe(others, twin=twin),
        }

    def _describe(self, neighbours: Iterable[tuple[int, float]], *, twin: int | None = None) -> list[dict[str, Any]]:
        return [
            {
                "picture": self._number(self._images[row], side=NEIGHBOUR_SIDE),
                "label": self._images[row].label,
                "path": self._images[row].path,
                "cosine": cosine,
                "is_twin": row == twin,
            }
            for row, cosine in islice(neighbours, NEIGHBOURS)
        ]

    def _number(self, image: LabelIssue, *, side: int) -> int:
        number = self._numbers.setdefault(image.sha256, len(self.places))
        if number == len(self.places):
            self.places.append(Place(Path(image.path), printable_path(image.path), sha256=image.sha256))
            self.sides.append(side)
        self.sides[number] = max(self.sides[number], side)
        return number


def _draw_panels(audited: LabelIssues, items: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[Any]]:
    """The (label, suggested) that panels filter by, and the panels: classes, and confusions."""
    images = {label: count for label, count, _ in audited.classes}
    estimated = {(label, shown): amount for label, shown, amount in audited.pairs}
    here = Counter((item["label"], item["suggested"]) for item in items if item["suggested"] is not None)
    confusions = sorted({**estimated, **here}, key=lambda pair: (-estimated.get(pair, 0), -here[pair]))
    figures = [
        f"{estimated[pair]:.0f} · {100 * estimated[pair] / images[pair[0]]:.0f} %" if pair in estimated else "–"
        for pair in confusions
    ]
    classes = [(number, label, f"{100 * share:.0f} %") for number, (label, _, share) in enumerate(audited.classes)]
    lines = [
        (len(classes) + number, " → ".join(pair), figure)
        for number, (pair, figure) in enumerate(zip(confusions, figures, strict=True))
    ]
    return [(label, "") for _, label, _ in classes] + confusions, [
        ("Classes", "estimated share of wrong labels", classes),
        ("Confusions", "given → shown, estimated images", lines),
    ]
