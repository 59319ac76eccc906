"""Decision files and label files: CSV."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from index.errors import InputError
from index.labels.decisions import (
    CHANGE,
    DECISIONS,
    DROP,
    GIVEN,
    KEEP,
    MAX_UNREVIEWED_P_RIGHT,
    P_RIGHT,
    ImageRef,
    LabelDecision,
    LabelKey,
    check_label_decision,
    parse_p_right,
)
from index.sources.table_rows import TableColumns, read_column, read_column_names
from index.text import printable_path, valid_text

HEADER = ("path", "label")
_ROWS_AT_ONCE = 1000


_Row: TypeAlias = tuple[str, LabelDecision, bool]
"""Position of a row for messages; its decision, whose label is None if the row has none; whether it was reviewed."""


def match_decisions(
    file: Path, subjects: Iterable[ImageRef], *, of_page: bool = False
) -> tuple[list[LabelDecision], int]:
    """Decisions of a CSV, and the number of rows of unknown images.

    Images are found by SHA-256, or else by path. Where no person looked, a label that stays does not count as a
    decision, and an image that never had a label is not dropped. A file `of_page` was saved by an audit's page, where a
    person looked at every label.
    """
    by_content: dict[str, list[ImageRef]] = {}
    by_path: dict[str, ImageRef] = {}
    for subject in subjects:
        by_content.setdefault(subject.sha256, []).append(subject)
        by_path[valid_text(subject.path)] = subject
    found: dict[LabelKey, LabelDecision] = {}
    unknown = 0
    for where, row, looked in _read_table(file, of_page=of_page):
        about = _find(row, by_content, by_path)
        if about is None:
            unknown += 1
            continue
        stays = row.decision == KEEP or (row.decision == CHANGE and row.new_label == about.label)
        if not looked and (stays or (row.decision == DROP and about.label is None)):
            continue
        decision = about.decide(KEEP if stays else row.decision, new_label=None if stays else row.new_label)
        try:
            decision = check_label_decision(replace(decision, source="import", p_right=row.p_right))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        before = found.setdefault(decision.key, decision)
        if before.meaning != decision.meaning:
            raise InputError(
                f"{where}: {printable_path(about.path)} as {about.label!r} is decided otherwise above; keep one"
            )
    return list(found.values()), unknown


def _find(row: LabelDecision, by_content: dict[str, list[ImageRef]], by_path: dict[str, ImageRef]) -> ImageRef | None:
    """Image of a row; among equal files the one at the path, else the one with the given label."""
    if not row.sha256:
        at_path = by_path.get(row.path)
        return at_path if at_path is None or row.label in (None, at_path.label or "") else None
    same = [s for s in by_content.get(row.sha256, []) if row.label in (None, s.label or "")]
    there = [s for s in same if valid_text(s.path) == row.path]
    if there or len({s.label for s in same}) == 1:
        return (there or same)[0]
    return None


def _read_table(file: Path, *, of_page: bool) -> Iterator[_Row]:
    """Rows that decide: by `decision`, by `new_label`, or where neither is a column by `label`."""
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as opened:
            yield from _read_rows(csv.DictReader(opened), printable_path(file), of_page=of_page)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}; give the file that was saved", at=file) from error
    except csv.Error as error:
        raise InputError(f"expected a CSV: {error}", at=file) from error


def _read_rows(rows: "csv.DictReader[str]", shown: str, *, of_page: bool) -> Iterator[_Row]:
    columns = set(rows.fieldnames or ())
    if "label" not in columns or not columns & {"path", "sha256"} or (of_page and "decision" not in columns):
        also = "decision" if of_page else "perhaps new_label"
        raise InputError(
            f"{shown}: expected the columns path or sha256, label and {also}, "
            f"found {', '.join(sorted(columns)) or 'none'}; add them"
        )
    for row in rows:
        cells = {name: row.get(name) or "" for name in ("path", "sha256", "label", "new_label", "decision")}
        decides = bool(columns & {"new_label", "decision"})
        new = cells["new_label"] if decides else cells["label"]
        decision = cells["decision"] or (CHANGE if new else "")
        if not decision:
            continue
        where = f"{shown}, line {rows.line_num}"
        if decision not in DECISIONS:
            raise InputError(f"{where}: the decision must be one of {', '.join(DECISIONS)}, found {decision!r}")
        if cells["new_label"] and decision != CHANGE and not of_page:
            raise InputError(f"{where}: {decision!r} goes without a new label, found {new!r}; empty one of both cells")
        p_right = parse_p_right(row.get(P_RIGHT), where=where)
        made = LabelDecision(
            cells["sha256"],
            cells["label"] if decides else None,
            decision,
            new if decision == CHANGE else None,
            path=valid_text(os.path.abspath(cells["path"])) if cells["path"] else "",
            p_right=p_right if p_right is not None else 1.0 if of_page else MAX_UNREVIEWED_P_RIGHT,
        )
        yield where, made, decides


def read_trust(
    table: Path, columns: TableColumns, *, labels: Mapping[str, str]
) -> dict[str, tuple[float | None, str | None]]:
    """`p_right`, and `given` where it is another than in `labels`, of a label file by path; empty without `p_right`."""
    if P_RIGHT not in read_column_names(table):
        return {}
    p_right, given = (read_column(table, name, columns=columns) for name in (P_RIGHT, GIVEN))
    found = dict[str, tuple[float | None, str | None]]()
    for path, text in p_right.items():
        where, before = f"{printable_path(table)}: {printable_path(path)}", given.get(path)
        found[path] = parse_p_right(text, where=where), None if before == labels.get(path) else before
    return found


def encode_labels(rows: Iterable[Sequence[str]], *, more_columns: Sequence[str] = ()) -> Iterator[bytes]:
    """Label file in blocks, from rows of path, label and more; not escaped for spreadsheets: programs read it."""
    lines = chain([(*HEADER, *more_columns)], rows)
    while block := list(islice(lines, _ROWS_AT_ONCE)):
        text = io.StringIO(newline="")
        csv.writer(text).writerows(block)
        yield text.getvalue().encode()


def can_be_named(path: str) -> bool:
    """Whether a path is valid Unicode, as label files in UTF-8 need."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
