"""The page on which a person goes through suspicious labels: one HTML file that asks nobody for anything.

Names and labels are hostile: they travel as JSON whose `<`, `>` and `&` are escaped, and the script of the page makes
text of them, never markup. The page's policy lets no other script run and no address be asked.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.ahead import map_ahead, usable_cores
from index.durable import replacing
from index.errors import ImageError, InputError
from index.images import REASONS, printable_path, read_image, valid_text
from index.progress import Progress
from retrieval_app.audit_look import BODY, CSS, ICON
from retrieval_app.audit_script import SCRIPT
from training.audit_report import (
    DUPLICATE,
    KEEP,
    NO_CLASS,
    RELABEL,
    VERDICTS,
    AuditedImage,
    AuditReport,
    Neighbour,
    suspicion_order,
)

if TYPE_CHECKING:  # at run time it would bring torch
    from training.decisions import Decision

SUSPECT_SIDE, NEIGHBOUR_SIDE = 192, 96
"""Longest side of the pictures, in pixels: of the images to decide on, and of those shown only beside them."""
QUALITY = 70
NEIGHBOURS_SHOWN = 3
"""Of either kind: with the same label, and with another."""
READ_AHEAD = 64


def write_audit_page(
    report: AuditReport,
    out: Path,
    *,
    limit: int,
    decisions: Iterable[Decision] = (),
    progress: Progress | None = None,
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
    drawn = order[:limit]
    table = _Table(report)
    rows = [table.add_row(row) for row in drawn]
    pictures, gone = table.draw_pictures(progress=progress)
    content = _describe(report) | {
        "images": table.images,
        "rows": rows,
        "pictures": pictures,
        "gone": gone,
        "decisions": [(valid_text(d.path), d.sha256, d.label, d.decision, d.new_label or "") for d in decisions],
    }
    try:
        with replacing(out) as temporary:
            temporary.write_text(_document(report.run, content), encoding="utf-8")
    except OSError as error:
        shown = printable_path(str(out))
        raise InputError(f"{shown}: the page cannot be written: {error.strerror}; choose another file") from error
    return len(rows)


class _Table:
    """The images of the page, each once, and their pictures, one for each content."""

    def __init__(self, report: AuditReport) -> None:
        self.images: list[tuple[str, str, str, int]] = []
        """Path, SHA-256, label, and the number of the picture."""
        self._report = report
        self._numbers: dict[int, int] = {}  # row of the report -> number in `images`
        self._wanted: dict[str, _Wanted] = {}

    def add_row(self, row: int) -> dict[str, Any]:
        """Add an image to decide on, and its neighbours; what the page's script is told of it."""
        audited = self._report.images[row]
        twin = audited.duplicate_of
        others = [other for other in audited.disagreeing if other.row != twin]
        if twin is not None:  # it is the nearest there can be
            others.insert(0, Neighbour(twin, 1.0))
        return {
            "image": self._add_image(row, side=SUSPECT_SIDE),
            "wrong": round(audited.wrong, 4),
            "confidence": round(audited.confidence, 4),
            "suggestions": [(label, round(confidence, 4)) for label, confidence in audited.suggestions],
            "verdict": audited.verdict,
            "proposal": propose_decision(self._report, audited),
            "twin": None if twin is None else self._add_image(twin, side=NEIGHBOUR_SIDE),
            "agreeing": self._add_neighbours(audited.agreeing),
            "disagreeing": self._add_neighbours(others),
        }

    def draw_pictures(self, *, progress: Progress | None) -> tuple[list[str], dict[int, str]]:
        """WebP files in base64, and by number why the empty ones among them are missing."""
        pictures: list[str] = []
        gone: dict[int, str] = {}
        drawn = map_ahead(_draw_picture, self._wanted.values(), workers=usable_cores(), ahead=READ_AHEAD)
        for number, (picture, problem) in enumerate(drawn):
            pictures.append(picture)
            if problem:
                gone[number] = problem
            if progress is not None:
                progress(number + 1, len(self._wanted))
        return pictures, gone

    def _add_neighbours(self, neighbours: Iterable[Neighbour]) -> list[tuple[int, float]]:
        return [
            (self._add_image(neighbour.row, side=NEIGHBOUR_SIDE), round(neighbour.cosine, 4))
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
    loaded.image.thumbnail((wanted.side, wanted.side))
    file = io.BytesIO()
    loaded.image.save(file, format="WEBP", quality=QUALITY)
    return base64.b64encode(file.getvalue()).decode("ascii"), ""


def propose_decision(report: AuditReport, audited: AuditedImage) -> tuple[str, str]:
    """What accepting the verdict on an image decides: (decision, new label).

    Of the labels of a duplicate the one with the higher confidence is right, so that both images agree in the end.
    """
    if audited.verdict == RELABEL and audited.new_label:
        return RELABEL, audited.new_label
    if audited.verdict == NO_CLASS:
        return NO_CLASS, ""
    if audited.verdict == DUPLICATE and audited.duplicate_of is not None:
        twin = report.images[audited.duplicate_of]
        if (twin.confidence, twin.label) > (audited.confidence, audited.label):
            return RELABEL, twin.label
    return KEEP, ""


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
        "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
        "labels": sorted(labels),
        "classes": [astuple(noise) for noise in report.classes],
        "pairs": [astuple(pair) for pair in report.pairs],
    }


def _run_name(run: Path) -> str:
    return printable_path(run.resolve().name)


def _document(run: Path, content: dict[str, Any]) -> str:
    """The HTML file, with its policy, style sheet, data and script."""
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # nothing in it can end the element that holds it
        data = data.replace(character, f"\\u{ord(character):04x}")
    policy = (
        f"default-src 'none'; script-src {_source(SCRIPT)}; style-src {_source(CSS)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(ICON.encode()).decode("ascii")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Label audit · {escape(_run_name(run))}</title>\n"
        f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n{BODY}\n"
        f'<script type="application/json" id="audit">{data}</script>\n<script>{SCRIPT}</script>\n'
        "</body>\n</html>\n"
    )


def _source(inline: str) -> str:
    """How the policy names a script or a style sheet that stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode('ascii')}'"
