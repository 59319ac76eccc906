"""Export of labels with their error probabilities: Label Studio, FiftyOne, cleanlab, and one flat table."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from index.durable import replacing, write_csv
from index.errors import InputError
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from retrieval_app.label_tools.scored_labels import COLUMNS, ScoredLabel, ScoredLabels

LABEL_CONTROL, DROP_CONTROL = "label", "drop"
_DROP_CHOICE = "leave this image out"


def write_label_studio(scored: ScoredLabels, path: Path) -> list[Path]:
    """Tasks to import, and NAME.xml beside them, the labelling interface.

    Images are named as Label Studio serves local files, with LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/.
    """
    interface, text = path.with_suffix(".xml"), _describe_interface(scored)
    _write_text(path, json.dumps([_task(item) for item in scored.items], indent=1))
    _write_text(interface, text)
    return [path, interface]


def _task(item: ScoredLabel) -> dict[str, Any]:
    """A task; its prediction is the most probable label with its probability as score."""
    shown, score = item.label, 1 - item.p_error
    if item.suggestions and (item.subject.label is None or item.suggestions[0][1] > score):
        shown, score = item.suggestions[0]
    choice = {"from_name": LABEL_CONTROL, "to_name": "image", "type": "choices", "value": {"choices": [shown]}}
    place = quote(os.fsencode(item.subject.path).lstrip(b"/"))
    return {
        "data": {
            "image": f"/data/local-files/?d={place}",
            "path": valid_text(item.subject.path),
            "sha256": item.subject.sha256,
            "given": item.label,
            "p_error": item.p_error,
            "suggested": item.suggestions[0][0] if item.suggestions else None,
        },
        "meta": {"suggestions": [{"label": label, "probability": share} for label, share in item.suggestions]},
        "predictions": [{"model_version": "retrieval", "score": score, "result": [choice]}],
    }


def _describe_interface(scored: ScoredLabels) -> str:
    names = sorted({*scored.classes, *(name for item in scored.items for name, _ in item.suggestions)})
    for name in names:
        bad = next((c for c in name if (c < " " and c not in "\t\n\r") or c in "\ufffe\uffff"), None)
        if bad is not None:
            raise InputError(
                f"the label {printable_path(name)} has the character {bad!a}, which XML cannot have; change the label"
            )
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        '  <Header value="Given: $given"/>\n'
        f'  <Choices name="{LABEL_CONTROL}" toName="image" choice="single">\n{choices}\n  </Choices>\n'
        f'  <Choices name="{DROP_CONTROL}" toName="image" choice="single">\n'
        f'    <Choice value="{_DROP_CHOICE}"/>\n  </Choices>\n</View>\n'
    )


def write_fiftyone(scored: ScoredLabels, folder: Path) -> list[Path]:
    """A FiftyOneImageClassificationDataset: paths in data.json, labels in labels.json, suggestions in suggested.json.

    `confidence` is the probability that the label is right.
    """
    places, labels, suggested = {}, {}, {}
    for number, item in enumerate(scored.items):
        key = f"{number:08}"
        places[key] = valid_text(item.subject.path)
        best = item.suggestions[0] if item.suggestions else (None, None)
        more = {"given": item.label, "sha256": item.subject.sha256, "p_error": item.p_error}
        more |= {"suggested": best[0], "suggested_probability": best[1]}
        given = {"label": item.label, "confidence": 1 - item.p_error, "attributes": more}
        labels[key] = None if item.subject.label is None else given
        suggested[key] = None if best[0] is None else {"label": best[0], "confidence": best[1]}
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("data.json", "labels.json", "suggested.json")]
    _write_text(files[0], json.dumps(places, indent=1))
    _write_text(files[1], json.dumps({"classes": None, "labels": labels}, indent=1))
    _write_text(files[2], json.dumps({"classes": None, "labels": suggested}, indent=1))
    return files


def write_cleanlab(scored: ScoredLabels, folder: Path) -> list[Path]:
    """labels.npy (N,) int64, pred_probs.npy (N, C) float64, classes.txt and paths.txt, a JSON string a line."""
    if scored.confidences is None:
        raise InputError(
            "cleanlab needs the confidences in all labels, which the table of an audit does not have; give a gallery"
        )
    shares = scored.confidences().astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    number = {name: place for place, name in enumerate(scored.classes)}
    labelled = [item for item in scored.items if item.subject.label is not None]
    labels = np.array([number[item.label] for item in labelled], dtype=np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("labels.npy", "pred_probs.npy", "classes.txt", "paths.txt")]
    for path, array in zip(files[:2], (labels, shares), strict=True):
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    _write_text(files[2], "".join(json.dumps(name) + "\n" for name in scored.classes))
    _write_text(files[3], "".join(json.dumps(valid_text(item.subject.path)) + "\n" for item in labelled))
    return files


def write_table(scored: ScoredLabels, path: Path) -> list[Path]:
    """A CSV of every label."""
    write_csv(path, list(COLUMNS), (list(row.values()) for row in scored.rows()))
    return [path]


def write_parquet(scored: ScoredLabels, path: Path) -> list[Path]:
    """The same as Parquet."""
    pyarrow = import_pyarrow("writing Parquet")
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()])
    rows = [
        {name: valid_text(cell) if isinstance(cell, str) else cell for name, cell in row.items()}
        for row in scored.rows()
    ]
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), temporary)
    return [path]


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


WRITERS = {
    "label-studio": write_label_studio,
    "fiftyone": write_fiftyone,
    "cleanlab": write_cleanlab,
    "csv": write_table,
    "parquet": write_parquet,
}
