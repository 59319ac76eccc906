"""Tables of a label audit: a row for each image, and the summary."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from index.durable import check_own_files, replacing, write_csv
from index.labels.decisions import DECISIONS
from index.labels.issue_tables import COLUMNS, Cell, describe_row
from index.labels.issues import NEIGHBOURS, LabelIssue, LabelIssues

_SIDES = [
    f"{side}_{name}{n}"
    for side in ("agreeing", "disagreeing")
    for n in range(1, NEIGHBOURS + 1)
    for name in ("", "cosine_")
]
_HEADER = ["rank", *COLUMNS, "confidence", *_SIDES, "duplicate_of"]


def write_audit_tables(audited: LabelIssues, out: Path, *, run: Path) -> list[Path]:
    """Write audit.csv and summary.json into a folder, which has no file of somebody else of these names; the files."""
    check_audit_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "audit.csv", out / "summary.json"]
    ranked = enumerate(rank_images(audited), start=1)
    write_csv(written[0], _HEADER, (_describe(rank, image, audited.items) for rank, image in ranked))
    with replacing(written[1]) as temporary:
        temporary.write_text(json.dumps(summarise_audit(audited, run=run), indent=2) + "\n", encoding="utf-8")
    return written


def check_audit_folder(out: Path) -> None:
    """See that an audit's files replace nothing but an audit's."""
    check_own_files(out, ("audit.csv", "summary.json", "audit.html"), header=_HEADER[:3])


def rank_images(audited: LabelIssues) -> list[LabelIssue]:
    """The images, the most probable errors first, ties by the least confidence."""
    return sorted(audited.items, key=lambda image: (-image.p_error, image.confidence))


def summarise_audit(audited: LabelIssues, *, run: Path) -> dict[str, Any]:
    """The audit of a run without its images, as plain values."""
    outcomes = Counter(image.outcome for image in audited.items)
    images = {label: count for label, count, _ in audited.classes}
    return {
        "run": str(run),
        "images": len(audited.items),
        "noise_rate": audited.noise_rate,
        "at_least_right": audited.at_least_right,
        "look_alikes": audited.look_alikes,
        "no_promise": audited.no_promise,
        "verdicts": {verdict: outcomes[verdict] for verdict in DECISIONS},
        "kinds": audited.count_kinds(),
        "classes": [{"label": label, "images": count, "noise_rate": share} for label, count, share in audited.classes],
        "pairs": [
            {"label": label, "suggested": shown, "noise_rate": amount / images[label], "images": amount}
            for label, shown, amount in audited.pairs
        ],
        "confused_classes": [{"labels": [one, two], "images": amount} for one, two, amount in audited.confused_classes],
    }


def _describe(rank: int, image: LabelIssue, images: tuple[LabelIssue, ...]) -> list[Cell]:
    near = [*_fill(image.agreeing, images), *_fill((pair[:2] for pair in image.disagreeing), images)]
    twin = None if image.duplicate_of is None else images[image.duplicate_of].path
    cells = [rank, *describe_row(image).values(), image.confidence, *near, twin]
    return [round(cell, 6) if isinstance(cell, float) else cell for cell in cells]


def _fill(neighbours: Iterable[tuple[int, float]], images: tuple[LabelIssue, ...]) -> list[Cell]:
    """Path and cosine for every rank; those that nothing is known for stay empty."""
    cells: list[Cell] = [cell for row, cosine in neighbours for cell in (images[row].path, cosine)]
    return cells + [None] * (2 * NEIGHBOURS - len(cells))
