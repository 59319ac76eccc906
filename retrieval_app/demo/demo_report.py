"""What the demo found, beside the truth, which it knows: the folder a picture lies in is its true label."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from index.labels.decisions import CHANGE, KEEP
from training.audit.report import AuditReport

ADDRESS = "http://127.0.0.1:7860/"
"""Where `retrieval serve` serves unless it is told otherwise."""


def judge_confidences(table: Path) -> dict[str, Any]:
    """How many of the known wrong labels a run's confidences.csv believes least, and what it suggests for them."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = np.array([_truth(row["path"]) != row["label"] for row in rows])
    suggested = np.array([_truth(row["path"]) == row["suggestion_1"] for row in rows])
    confidence = np.array([float(row["confidence"]) for row in rows])
    lowest = np.argsort(confidence, kind="stable")[: int(wrong.sum())]
    return {
        "labels": len(rows),
        "wrong": int(wrong.sum()),
        "wrong_among_least_confident": int(wrong[lowest].sum()),
        "wrong_with_true_label_suggested": int((wrong & suggested).sum()),
    }


def judge_audit(report: AuditReport) -> dict[str, Any]:
    """How the audit's verdicts compare with the truth."""
    suspects = [image for image in report.images if image.verdict != KEEP]
    relabelled = [image for image in suspects if image.verdict == CHANGE]
    return {
        "noise_rate": report.noise_rate,
        "suspects": len(suspects),
        "wrong_suspects": sum(image.label != _truth(image.path) for image in suspects),
        "relabelled": len(relabelled),
        "relabelled_to_truth": sum(image.new_label == _truth(image.path) for image in relabelled),
    }


def format_report(report: dict[str, Any], *, program: str = "retrieval") -> str:
    """The report for people; `program` is how they call the command line."""
    found, audit, asked = report["wrong_labels"], report["audit"], report["found_first"]
    count, boxed = report["gallery"]["indexed"], report["gallery"]["evaluation"]["recall"]["1"]
    trained = report["trained_gallery"]["recall"]["1"]
    lines = [
        f"Of {asked['asked']} photos that were cut, turned and recoloured, {asked['picture']} find the one that they "
        f"were made of first by picture, {asked['kind']} by kind, among {count}.",
        f"Recall@1 on these {count} photos, of kinds that were not trained on: {100 * boxed:.1f} % by the model that "
        f"comes with the package, {100 * trained:.1f} % by the one that was trained on its features.",
        "In training, on the same photos, in %, with 95 % intervals over queries:",
        *(
            f"  {name:<18}{100 * row['recall']:6.1f}   [{100 * row['interval'][0]:.1f}, {100 * row['interval'][1]:.1f}]"
            for name, row in report["recall_at_1"].items()
        ),
        f"  (default exports {report['exports']}; the others took no step of training; raw is the "
        f"backbone at full width, the others are {report['embedding_dim']}-d)",
        f"The verdict of the training: {report['verdict']['text']}",
        f"Wrong labels: {found['wrong']} of {found['labels']}. Of the {found['wrong']} labels that the default recipe "
        f"believes least, {found['wrong_among_least_confident']} are wrong; it suggests the true label for "
        f"{found['wrong_with_true_label_suggested']} of the wrong ones.",
        f"The audit estimates that {audit['noise_rate']:.0%} of the labels are wrong. It suspects {audit['suspects']}, "
        f"of which {audit['wrong_suspects']} are wrong, and would relabel {audit['relabelled']}, "
        f"{audit['relabelled_to_truth']} of them to the true label.",
        f"Audit page: {audit['page']}",
        f"Pictures: {', '.join(report['pictures'])}",
        f"{report['seconds']:.0f} s. Browse the photos: {program} serve {shlex.quote(report['out'] + '/gallery')}",
        f"  then the page is at {ADDRESS}, and as a Gradio app at {ADDRESS}gradio/",
    ]
    return "\n".join(lines)


def _truth(path: str | Path) -> str:
    return Path(path).parent.name
