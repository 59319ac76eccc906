"""Export of labels with their error probabilities: Label Studio, FiftyOne, cleanlab, and a CSV."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from index.arrays import Floats
from index.durable import replacing, write_csv
from index.errors import InputError
from index.labels.decision_files import DROP_CONTROL, LABEL_CONTROL
from index.labels.issue_tables import COLUMNS, describe_row
from index.labels.issues import LabelIssue, LabelIssues
from index.text import printable_path, valid_text

_DROP_CHOICE = "leave this image out"


def write_label_studio(issues: LabelIssues, path: Path) -> list[Path]:
    """Tasks to import, and NAME.xml beside them, the labelling interface.

    Images are named as Label Studio serves local files, with LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/.
    """
    interface, text = path.with_suffix(".xml"), _describe_interface(issues)
    _write_text(path, json.dumps([_task(issue) for issue in issues.items], indent=1))
    _write_text(interface, text)
    return [path, interface]


def _task(issue: LabelIssue) -> dict[str, Any]:
    """A task; its prediction is the most probable label with its probability as score."""
    shown, score = issue.label or "", 1 - issue.p_error
    if issue.suggestions and (issue.label is None or issue.p_suggested > score):
        shown, score = issue.suggestions[0]
    choice = {"from_name": LABEL_CONTROL, "to_name": "image", "type": "choices", "value": {"choices": [shown]}}
    place = quote(os.fsencode(issue.path).lstrip(b"/"))
    return {
        "data": {"image": f"/data/local-files/?d={place}", "path": valid_text(issue.path), **_describe(issue)},
        "meta": {"suggestions": [{"label": label, "probability": share} for label, share in issue.suggestions]},
        "predictions": [{"model_version": "retrieval", "score": score, "result": [choice]}],
    }


def _describe(issue: LabelIssue) -> dict[str, Any]:
    """What both programs keep beside a label, by which decisions are matched."""
    return {"given": issue.label or "", "sha256": issue.sha256, "p_error": issue.p_error, "suggested": issue.suggested}


def _describe_interface(issues: LabelIssues) -> str:
    names = {label for label, *_ in issues.classes} | {name for one in issues.items for name, _ in one.suggestions}
    for name in names:
        bad = next((c for c in name if (c < " " and c not in "\t\n\r") or c in "\ufffe\uffff"), None)
        if bad is not None:
            raise InputError(
                f"the label {printable_path(name)} has the character {bad!a}, which XML cannot have; change the label"
            )
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in sorted(names))
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        '  <Header value="Given: $given"/>\n'
        f'  <Choices name="{LABEL_CONTROL}" toName="image" choice="single">\n{choices}\n  </Choices>\n'
        f'  <Choices name="{DROP_CONTROL}" toName="image" choice="single">\n'
        f'    <Choice value="{_DROP_CHOICE}"/>\n  </Choices>\n</View>\n'
    )


def write_fiftyone(issues: LabelIssues, folder: Path) -> list[Path]:
    """A FiftyOneImageClassificationDataset: paths in data.json, labels in labels.json, suggestions in suggested.json.

    `confidence` is the probability that the label is right.
    """
    places, labels, suggested = {}, {}, {}
    for number, issue in enumerate(issues.items):
        key, best = f"{number:08}", {"label": issue.suggested, "confidence": issue.p_suggested}
        more = _describe(issue) | {"suggested_probability": issue.p_suggested if issue.suggestions else None}
        given = {"label": issue.label, "confidence": 1 - issue.p_error, "attributes": more}
        places[key] = valid_text(issue.path)
        labels[key] = None if issue.label is None else given
        suggested[key] = best if issue.suggestions else None
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "data.json": places,
        "labels.json": {"classes": None, "labels": labels},
        "suggested.json": {"classes": None, "labels": suggested},
    }
    for name, document in documents.items():
        _write_text(folder / name, json.dumps(document, indent=1))
    return [folder / name for name in documents]


def write_cleanlab(issues: LabelIssues, folder: Path, confidences: Callable[[], Floats] | None) -> list[Path]:
    """labels.npy (N,) int64, pred_probs.npy (N, C) float64, classes.txt and paths.txt, a JSON string a line."""
    if confidences is None:
        raise InputError(
            "cleanlab needs the confidences in all labels, which the table of an audit does not have; give a gallery"
        )
    shares = confidences().astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    classes = sorted(label for label, *_ in issues.classes)
    number = {name: place for place, name in enumerate(classes)}
    labelled = [(number[one.label], valid_text(one.path)) for one in issues.items if one.label is not None]
    labels = np.array([label for label, _ in labelled], dtype=np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("labels.npy", "pred_probs.npy", "classes.txt", "paths.txt")]
    for path, array in zip(files[:2], (labels, shares), strict=True):
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    _write_text(files[2], "".join(json.dumps(name) + "\n" for name in classes))
    _write_text(files[3], "".join(json.dumps(path) + "\n" for _, path in labelled))
    return files


def write_table(issues: LabelIssues, path: Path) -> list[Path]:
    """A CSV of every label."""
    write_csv(path, list(COLUMNS), (list(describe_row(issue).values()) for issue in issues.items))
    return [path]


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


WRITERS = {"label-studio": write_label_studio, "fiftyone": write_fiftyone, "csv": write_table}
"""Writers of the formats that galleries and audits share; `write_cleanlab` needs a gallery's confidences."""
