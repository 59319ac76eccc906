"""Label audit report: its images, classes and pairs of classes, and the tables that it writes."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from index.durable import check_own_files, replacing, write_csv
from index.labels.decisions import DECISIONS, LabelDecision, LabelKey
from index.labels.kinds import KINDS, Kind
from index.labels.verdicts import why_no_promise
from index.text import valid_text

_RANKS = (1, 2, 3)
# column -> its type in Parquet
_COLUMNS = (
    {"rank": "int64", "path": "string", "sha256": "string", "label": "string"}
    | {"p_error": "float64", "p_suggested": "float64", "p_none": "float64", "confidence": "float64"}
    | {
        f"{name}_{n}": kind
        for n in _RANKS
        for name, kind in (("suggestion", "string"), ("suggestion_probability", "float64"))
    }
    | {"kind": "string", "verdict": "string", "new_label": "string"}
    | {
        f"{side}_{name}{n}": kind
        for side in ("agreeing", "disagreeing")
        for n in _RANKS
        for name, kind in (("", "string"), ("cosine_", "float64"))
    }
    | {"duplicate_of": "string"}
)
Row = list[object]
Neighbour = tuple[int, float]
"""Row of another training image in the audit, and its cosine."""


def write_audit_tables(report: "AuditReport", out: Path) -> list[Path]:
    """Write audit.csv, noise.csv and summary.json into a folder, and audit.parquet where pyarrow is installed.

    Every file is replaced atomically; an audit.parquet that could not be renewed is removed.

    Returns:
        The files written.

    Raises:
        InputError: a file of somebody else has one of the names.
    """
    check_audit_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    parquet = out / "audit.parquet"
    written = [out / "audit.csv", out / "noise.csv", out / "summary.json"]
    write_csv(written[0], list(_COLUMNS), _image_rows(report))
    rates: list[Row] = [[one.label, None, one.images, round(one.noise_rate, 6)] for one in report.classes]
    rates += [[one.label, one.suggested, round(one.images, 3), round(one.noise_rate, 6)] for one in report.pairs]
    write_csv(written[1], ["label", "suggested", "images", "noise_rate"], rates)
    with replacing(written[2]) as temporary:
        temporary.write_text(json.dumps(summarise_audit(report), indent=2) + "\n", encoding="utf-8")
    if _write_parquet(parquet, _image_rows(report)):
        written.insert(1, parquet)
    else:
        parquet.unlink(missing_ok=True)
    return written


def check_audit_folder(out: Path) -> None:
    """See that an audit's files replace nothing but an audit's."""
    names = ("audit.csv", "audit.parquet", "noise.csv", "summary.json", "audit.html")
    check_own_files(out, names, header=list(_COLUMNS)[:3])


def rank_images(report: "AuditReport") -> list[int]:
    """Rows of the report's images, the most probable errors first; ties by row."""
    return sorted(range(len(report.images)), key=lambda row: issue_order(report.images[row]))


def summarise_audit(report: "AuditReport") -> dict[str, Any]:
    """The report without its images, as plain values."""
    verdicts = Counter(image.verdict for image in report.images)
    kinds = Counter(image.kind for image in report.images)
    return {
        "run": str(report.run),
        "images": len(report.images),
        "noise_rate": report.noise_rate,
        "at_least_right": report.at_least_right,
        "look_alikes": report.look_alikes,
        "no_promise": report.no_promise,
        "verdicts": {verdict: verdicts[verdict] for verdict in DECISIONS},
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "classes": [asdict(found) for found in report.classes],
        "pairs": [asdict(found) for found in report.pairs],
        "confused_classes": [{"labels": [one, two], "images": images} for one, two, images in report.confused_classes],
    }


def _image_rows(report: "AuditReport") -> Iterator[Row]:
    for rank, row in enumerate(rank_images(report), start=1):
        image = report.images[row]
        twin = None if image.duplicate_of is None else _path_text(report.images[image.duplicate_of].path)
        yield [
            rank,
            _path_text(image.path),
            image.sha256,
            image.label,
            round(image.p_error, 6),
            round(image.p_suggested, 6),
            round(image.p_none, 6),
            round(image.confidence, 6),
            *_fill([value for name, share in image.suggestions for value in (name, round(share, 6))]),
            image.kind,
            image.verdict,
            image.new_label,
            *_neighbour_cells(image.agreeing, report.images),
            *_neighbour_cells(image.disagreeing, report.images),
            twin,
        ]


def _neighbour_cells(neighbours: Sequence[Neighbour], images: "Sequence[AuditedImage]") -> Row:
    return _fill([cell for row, cosine in neighbours for cell in (_path_text(images[row].path), round(cosine, 6))])


def _fill(cells: Row) -> Row:
    """Two cells for every rank; those that nothing is known for stay empty."""
    return cells + [None] * (2 * len(_RANKS) - len(cells))


def _path_text(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _write_parquet(path: Path, rows: Iterator[Row]) -> bool:
    """Whether there is a pyarrow to write it with; Parquet holds text only, so undecodable bytes become escapes."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return False
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in _COLUMNS.items()])
    columns = zip(*([valid_text(c) if isinstance(c, str) else c for c in row] for row in rows), strict=True)
    arrays = [pyarrow.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    with replacing(path) as temporary:
        parquet.write_table(pyarrow.table(arrays, schema=schema), temporary)
    return True


@dataclass(frozen=True, slots=True)
class AuditedImage:
    """A training image with the probability that its label is wrong, suggestions, verdict and nearest images.

    Attributes:
        p_error: probability that the label is wrong, 0..1; rows are ranked by it.
        confidence: leave-one-out confidence in the label, 0..1: from all images but this one and its duplicates.
        suggested: most probable other label.
        p_suggested: probability that the suggested label is right.
        p_none: probability that the image shows none of the classes.
        suggestions: (label, probability) of the most probable classes, its own among them or not, best first, three at
            most.
        verdict: of `index.labels.decisions.DECISIONS`.
        new_label: what `change` would make of it; None for the other verdicts.
        agreeing, disagreeing: nearest other images with the same and with another label, nearest first.
        duplicate_of: row of a near-duplicate with another label; None without.
        p_right: probability that the label is right, as whoever set it said: 1 where a person looked; None where
            nobody decided.
        before: the label before a machine changed it; None where none did.
        kind: of `index.labels.kinds`; None where the label is probably right and no near-duplicate has another one.
    """

    path: Path
    sha256: str
    label: str
    p_error: float
    confidence: float
    suggested: str
    p_suggested: float
    p_none: float
    suggestions: tuple[tuple[str, float], ...]
    verdict: str
    new_label: str | None
    agreeing: tuple[Neighbour, ...]
    disagreeing: tuple[Neighbour, ...]
    duplicate_of: int | None
    kind: Kind | None = None
    p_right: float | None = None
    before: str | None = None


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
        at_least_right: the share of right labels that the verdicts aim at, 0..1.
        look_alikes: share of simulated errors between look-alike labels that would be called wrong, 0..1.
        confused_classes: (label, label, images) of labels used for each other, the most images first.
    """

    run: Path
    images: tuple[AuditedImage, ...]
    classes: tuple[ClassNoise, ...]
    pairs: tuple[PairNoise, ...]
    noise_rate: float
    at_least_right: float
    look_alikes: float
    confused_classes: tuple[tuple[str, str, float], ...] = ()

    @property
    def no_promise(self) -> str | None:
        """Why a share of right labels cannot be promised; None where it can."""
        return why_no_promise(
            labels=len(self.images), look_alikes=self.look_alikes, classes=len(self.classes), is_lower_bound=False
        )


def issue_order(image: AuditedImage) -> tuple[float, float]:
    """Sort key: the most probable errors first, ties by the least confidence."""
    return -image.p_error, image.confidence


def override_verdicts(
    report: AuditReport, decisions: Mapping[LabelKey, LabelDecision]
) -> tuple[AuditReport, frozenset[int]]:
    """The report with what was decided in the place of its own verdicts, and the rows decided about."""
    images, decided = list(report.images), []
    for row, image in enumerate(images):
        decision = decisions.get((image.sha256, image.label))
        if decision is not None:
            images[row] = replace(
                image, verdict=decision.decision, new_label=decision.new_label, p_right=decision.p_right
            )
            decided.append(row)
    return replace(report, images=tuple(images)), frozenset(decided)
