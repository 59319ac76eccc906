"""Steps of decisions as the lines of a backup, and back, each value looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from index.errors import InputError
from index.labels.decisions import LabelDecision, check_label_decision
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage, check_duplicate_decision
from retrieval_app.review.history import DecidedStep


def write_lines(steps: Iterable[DecidedStep]) -> Iterator[bytes]:
    """A JSON object for each step, with undecodable bytes of paths as escapes of surrogates."""
    for step in steps:
        labels = [
            {"sha256": d.sha256, "label": d.label, "decision": d.decision, "new_label": d.new_label,
             "image_id": d.image_id, "path": d.path}
            for d in step.labels
        ]  # fmt: skip
        duplicates = [
            {"decision": d.decision, "keep": list(d.keep),
             "images": [[image.sha256, image.image_id, image.path] for image in d.images]}
            for d in step.duplicates
        ]  # fmt: skip
        document = {"decided_at": step.decided_at, "labels": labels, "duplicates": duplicates}
        if step.decided_by is not None:
            document["decided_by"] = step.decided_by
        yield json.dumps(document).encode() + b"\n"


def read_step(line: Mapping[str, Any]) -> DecidedStep:
    """The step of a line.

    Raises:
        InputError: it is none.
    """
    try:
        decided_at = datetime.fromisoformat(_text(line["decided_at"]))
        if decided_at.tzinfo is None:
            raise ValueError("a time without its zone")
        decided_by = line.get("decided_by")
        step = DecidedStep(
            decided_at.astimezone(UTC).isoformat(timespec="seconds"),
            tuple(map(_read_label, _list(line["labels"]))),
            tuple(map(_read_duplicate, _list(line["duplicates"]))),
            None if decided_by is None else _text(decided_by),
        )
    except (KeyError, TypeError, ValueError, OverflowError, UnicodeError) as error:
        raise InputError(f"no step of decisions: {type(error).__name__}: {error}") from error
    if bool(step.labels) == bool(step.duplicates):
        raise InputError("no step of decisions: it decides about labels, or about duplicates")
    return step


def _read_label(values: Any) -> LabelDecision:
    label, new_label, image_id = values["label"], values["new_label"], values["image_id"]
    given = LabelDecision(
        _text(values["sha256"]),
        None if label is None else _text(label),
        _text(values["decision"]),
        None if new_label is None else _text(new_label),
        None if image_id is None else _id(image_id),
        _path(values["path"]),
    )
    return check_label_decision(given)


def _read_duplicate(values: Any) -> DuplicateDecision:
    images = tuple(
        GroupImage(_text(sha256), _id(number), _path(path)) for sha256, number, path in values["images"]
    )
    keep = tuple(map(_id, _list(values["keep"])))
    return check_duplicate_decision(DuplicateDecision(images, _text(values["decision"]), keep))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    value.encode()  # which a lone surrogate has no place in
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a path, got {type(value).__name__}")
    os.fsencode(value)  # undecodable bytes have their surrogates
    return value


def _id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise TypeError("expected an id")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value
