"""The page on which a person goes through suspicious labels: one HTML file, made of the page's own modules."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from index.errors import ImageError
from index.images.image_files import REASONS, read_image
from index.labels.decisions import DECISIONS, KEEP, LabelDecision
from index.labels.kinds import KINDS
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from index.threads import map_ahead, usable_cores
from retrieval_app.reports.standalone import bundle_scripts, draw_document, encode_picture, write_document
from training.audit.report import AuditReport, Neighbour, suspicion_order

_STYLES = ("core/base.css", "review/review.css", "reports/audit.css")
_INSTEAD = {
    "core/api.js": "reports/local_api.js",
    "core/url_state.js": "reports/local_state.js",
    "review/surroundings.js": "reports/surroundings.js",
}
SUSPECT_SIDE, NEIGHBOUR_SIDE = 192, 96
"""Longest side of the pictures, in pixels: of the images to decide on, and of those shown only beside them."""
NEIGHBOURS_SHOWN = 3
"""Of either kind: with the same label, and with another."""
READ_AHEAD = 64


def write_audit_page(
    report: AuditReport,
    out: Path,
    *,
    limit: int,
    decisions: Iterable[LabelDecision] = (),
    progress: Progress = no_progress,
) -> int:
    """Write the page of an audit into one HTML file; how many images can be decided on there.

    A picture that cannot be read any more, or that is not the one audited, is shown as a placeholder.

    Args:
        report: the audit.
        out: the file; it is replaced in one step.
        limit: most images shown: those whose verdict is not to keep the label first, then by `wrong`.
        decisions: made before; what is decided in the browser later goes before them.
        progress: told (done, total) of the pictures.

    Raises:
        InputError: the file cannot be written.
    """
    order = sorted(
        range(len(report.images)),
        key=lambda row: (report.images[row].verdict == KEEP, *suspicion_order(report.images[row]), row),
    )
    table = _Table(report)
    items = [table.add_item(row) for row in order[:limit]]
    pictures, gone = table.draw_pictures(progress=progress)
    content = _describe(report) | {
        "images": table.images,
        "items": items,
        "kinds": {kind: sum(item["kind"] == kind for item in items) for kind in KINDS},
        "pictures": pictures,
        "gone": gone,
        "decisions": [(valid_text(d.path), d.sha256, d.label, d.decision, d.new_label or "") for d in decisions],
    }
    script = bundle_scripts("reports/audit.js", instead=_INSTEAD)
    parts = draw_document("audit.html", styles=_STYLES, script=script, data=content, run=_run_name(report.run))
    write_document(parts, out)
    return len(items)


class _Table:
    """The images of the page, each once, and their pictures, one for each content."""

    def __init__(self, report: AuditReport) -> None:
        self.images: list[tuple[str, str, str, int]] = []
        """Path, SHA-256, label, and the number of the picture."""
        self._report = report
        self._numbers: dict[int, int] = {}  # row of the report -> number in `images`
        self._wanted: dict[str, _Wanted] = {}

    def add_item(self, row: int) -> dict[str, Any]:
        """Add an image to decide on, and its neighbours; what the page's scripts are told of it."""
        audited = self._report.images[row]
        twin = audited.duplicate_of
        others = [other for other in audited.disagreeing if other.row != twin]
        if twin is not None:  # it is the nearest there can be
            others.insert(0, Neighbour(twin, 1.0))
        return {
            "id": self._add_image(row, side=SUSPECT_SIDE),
            "wrong": round(audited.wrong, 4),
            "confidence": round(audited.confidence, 4),
            "suggestions": [
                {"label": label, "confidence": round(share, 4)} for label, share in audited.suggestions
            ],
            "verdict": audited.verdict,
            "kind": audited.kind,
            "new_label": audited.new_label,
            "twin": None if twin is None else self._add_image(twin, side=NEIGHBOUR_SIDE),
            "agreeing": self._add_neighbours(audited.agreeing),
            "disagreeing": self._add_neighbours(others),
        }

    def draw_pictures(self, *, progress: Progress) -> tuple[list[str], dict[int, str]]:
        """WebP files in base64, and by number why the empty ones among them are missing."""
        pictures: list[str] = []
        gone: dict[int, str] = {}
        drawn = map_ahead(_draw_picture, self._wanted.values(), workers=usable_cores(), ahead=READ_AHEAD)
        for number, (picture, problem) in enumerate(drawn):
            pictures.append(picture)
            if problem:
                gone[number] = problem
            progress(number + 1, len(self._wanted))
        return pictures, gone

    def _add_neighbours(self, neighbours: Iterable[Neighbour]) -> list[dict[str, Any]]:
        return [
            {
                "id": self._add_image(neighbour.row, side=NEIGHBOUR_SIDE),
                "score": round(neighbour.cosine, 4),
                "label": self._report.images[neighbour.row].label,
            }
            for neighbour in islice(neighbours, NEIGHBOURS_SHOWN)
        ]

    def _add_image(self, row: int, *, side: int) -> int:
        audited = self._report.images[row]
        wanted = self._wanted.setdefault(
            audited.sha256, _Wanted(audited.path, audited.sha256, number=len(self._wanted))
        )
        wanted.side = max(wanted.side, side)
        if row not in self._numbers:
            self._numbers[row] = len(self.images)
            self.images.append((valid_text(str(audited.path)), audited.sha256, audited.label, wanted.number))
        return self._numbers[row]


@dataclass(slots=True)
class _Wanted:
    """A picture to be drawn; `side` is the longest, in pixels."""

    path: Path
    sha256: str
    number: int
    side: int = 0


def _draw_picture(wanted: _Wanted) -> tuple[str, str]:
    """A WebP file in base64, or why there is none."""
    try:
        loaded = read_image(wanted.path, target_side=wanted.side)
    except ImageError as error:
        return "", REASONS[error.reason]
    if loaded.sha256 != wanted.sha256:
        return "", "the file has changed since it was audited"
    return encode_picture(loaded.image, side=wanted.side), ""


def _describe(report: AuditReport) -> dict[str, Any]:
    """The audit as a whole: what the header and the panels show."""
    verdicts = Counter(image.verdict for image in report.images)
    labels = {image.label for image in report.images} | {noise.label for noise in report.classes}
    labels.update(label for image in report.images for label, _ in image.suggestions)
    run = str(report.run.resolve())
    return {
        "run": _run_name(report.run),
        "key": hashlib.sha256(os.fsencode(run)).hexdigest()[:16],
        "total": len(report.images),
        "noise_rate": report.noise_rate,
        "is_lower_bound": report.is_lower_bound,
        "verdicts": {verdict: verdicts[verdict] for verdict in DECISIONS},
        "labels": sorted(labels),
        "classes": [astuple(noise) for noise in report.classes],
        "pairs": [astuple(pair) for pair in report.pairs],
        "mixed": [{"labels": [one, two], "images": images} for one, two, images in report.mixed],
    }


def _run_name(run: Path) -> str:
    return printable_path(run.resolve().name)
