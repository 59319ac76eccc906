"""Export of labels with their error probabilities: Label Studio, FiftyOne, cleanlab, and one flat table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np

from index.durable import replacing, write_csv
from index.errors import InputError
from index.sources.table_rows import import_pyarrow
from index.text import printable_path, valid_text
from retrieval_app.label_tools.judged import JudgedLabel, JudgedLabels

LABEL_CONTROL, DROP_CONTROL = "label", "drop"
_DROP_CHOICE = "leave this image out"
_SUGGESTIONS = 3
# column -> its type in Parquet
_COLUMNS = (
    {"path": "string", "sha256": "string", "label": "string", "wrong": "float64", "suggested": "string"}
    | {f"suggestion{name}_{rank}": kind for rank in range(1, _SUGGESTIONS + 1) for name, kind in
       (("", "string"), ("_confidence", "float64"))}
    | {"decision": "string", "new_label": "string"}
)  # fmt: skip


def write_label_studio(judged: JudgedLabels, path: Path) -> list[Path]:
    """Tasks to import, and NAME.xml beside them, the labelling interface.

    Images are named as Label Studio serves local files, with LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/.

    Raises:
        InputError: a label has a character that XML cannot say.
    """
    interface, text = path.with_suffix(".xml"), _describe_interface(judged)
    _write_text(path, json.dumps([_task(item) for item in judged.items], indent=1))
    _write_text(interface, text)
    return [path, interface]


def _task(item: JudgedLabel) -> dict[str, Any]:
    """A task; its prediction is the likeliest label, its score the probability of that."""
    shown, score = item.label, 1 - item.wrong
    if item.suggestions and item.suggestions[0][1] > score:
        shown, score = item.suggestions[0]
    choice = {
        "from_name": LABEL_CONTROL, "to_name": "image", "type": "choices", "value": {"choices": [shown]},
    }  # fmt: skip
    place = quote(os.fsencode(item.subject.path).lstrip(b"/"))
    return {
        "data": {
            "image": f"/data/local-files/?d={place}",
            "path": valid_text(item.subject.path),
            "sha256": item.subject.sha256,
            "given": item.label,
            "wrong": item.wrong,
            "suggested": item.suggestions[0][0] if item.suggestions else None,
        },
        "meta": {"suggestions": [{"label": label, "confidence": share} for label, share in item.suggestions]},
        "predictions": [{"model_version": "retrieval", "score": score, "result": [choice]}],
    }


def _describe_interface(judged: JudgedLabels) -> str:
    names = sorted({*judged.classes, *(name for item in judged.items for name, _ in item.suggestions)})
    for name in names:
        bad = next((c for c in name if (c < " " and c not in "\t\n\r") or c in "\ufffe\uffff"), None)
        if bad is not None:
            raise InputError(
                f"the label {printable_path(name)} has the character {bad!a}, which XML cannot say; change the label"
            )
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in names)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        '  <Header value="Given: $given"/>\n'
        f'  <Choices name="{LABEL_CONTROL}" toName="image" choice="single">\n{choices}\n  </Choices>\n'
        f'  <Choices name="{DROP_CONTROL}" toName="image" choice="single">\n'
        f'    <Choice value="{_DROP_CHOICE}"/>\n  </Choices>\n</View>\n'
    )


def write_fiftyone(judged: JudgedLabels, folder: Path) -> list[Path]:
    """A FiftyOneImageClassificationDataset: data.json says where images are, labels.json how they are labelled.

    Confidence there is the chance that the label is right; suggested.json has the likeliest other labels likewise.
    """
    places, labels, suggested = {}, {}, {}
    for number, item in enumerate(judged.items):
        key = f"{number:08}"
        places[key] = valid_text(item.subject.path)
        best = item.suggestions[0] if item.suggestions else (None, None)
        more = {"given": item.label, "sha256": item.subject.sha256, "wrong": item.wrong}
        more |= {"suggested": best[0], "suggested_confidence": best[1]}
        labels[key] = {"label": item.label, "confidence": 1 - item.wrong, "attributes": more}
        suggested[key] = None if best[0] is None else {"label": best[0], "confidence": best[1]}
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("data.json", "labels.json", "suggested.json")]
    _write_text(files[0], json.dumps(places, indent=1))
    _write_text(files[1], json.dumps({"classes": None, "labels": labels}, indent=1))
    _write_text(files[2], json.dumps({"classes": None, "labels": suggested}, indent=1))
    return files


def write_cleanlab(judged: JudgedLabels, folder: Path) -> list[Path]:
    """labels.npy (N,) int64, pred_probs.npy (N, C) float64, classes.txt and paths.txt, a JSON string a line.

    Raises:
        InputError: there are no confidences in all labels.
    """
    if judged.confidences is None:
        raise InputError(
            "cleanlab needs the confidences in all labels, and the table of an audit has three; give a gallery"
        )
    shares = judged.confidences().astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    number = {name: place for place, name in enumerate(judged.classes)}
    labels = np.array([number[item.label] for item in judged.items], dtype=np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("labels.npy", "pred_probs.npy", "classes.txt", "paths.txt")]
    for path, array in zip(files[:2], (labels, shares), strict=True):
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    _write_text(files[2], "".join(json.dumps(name) + "\n" for name in judged.classes))
    _write_text(files[3], "".join(json.dumps(valid_text(item.subject.path)) + "\n" for item in judged.items))
    return files


def write_table(judged: JudgedLabels, path: Path) -> list[Path]:
    """A CSV of every label."""
    write_csv(path, list(_COLUMNS), (list(row.values()) for row in _rows(judged)))
    return [path]


def write_parquet(judged: JudgedLabels, path: Path) -> list[Path]:
    """The same as Parquet."""
    pyarrow = import_pyarrow("writing Parquet")
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in _COLUMNS.items()])
    rows = [
        {name: valid_text(cell) if isinstance(cell, str) else cell for name, cell in row.items()}
        for row in _rows(judged)
    ]
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), temporary)
    return [path]


def _rows(judged: JudgedLabels) -> Iterator[dict[str, object]]:
    for item in judged.items:
        decided = judged.decisions.get(item.subject.key)
        row: dict[str, object] = dict.fromkeys(_COLUMNS)
        row |= {"path": item.subject.path, "sha256": item.subject.sha256, "label": item.label, "wrong": item.wrong}
        for rank, (label, chance) in enumerate(item.suggestions[:_SUGGESTIONS], start=1):
            row |= {f"suggestion_{rank}": label, f"suggestion_confidence_{rank}": chance}
        row["suggested"] = row["suggestion_1"]
        if decided is not None:
            row |= {"decision": decided.decision, "new_label": decided.new_label}
        yield row


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
