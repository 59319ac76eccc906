"""Columns of an exported data set: types that every row has, and the split of each image."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from index.arrays import number_labels
from index.catalog.rows import SPLIT, CatalogRow
from index.errors import InputError
from index.evaluation.evaluate import read_members
from index.evaluation.groups import find_groups
from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.labels.decided_labels import read_label_probabilities
from index.labels.decisions import GIVEN, P_RIGHT
from index.sources.table_rows import as_text
from index.text import hide_folder, printable_path, valid_text

_NAMES = {2: ("train", "test"), 3: ("train", "validation", "test")}


def parse_shares(text: str) -> dict[str, float]:
    """The share of each split, of a text such as `80/20` (train/test) or `80/10/10` (train/validation/test)."""
    try:
        percents = [float(part) for part in text.split("/")]
    except ValueError:
        percents = []
    names = _NAMES.get(len(percents))
    if names is None or not all(percent > 0 for percent in percents) or abs(sum(percents) - 100) > 1e-6:
        raise InputError(
            f"split: expected percentages that add up to 100, as 80/20 (train/test) or 80/10/10 "
            f"(train/validation/test), got {text!r}"
        )
    return {name: percent / 100 for name, percent in zip(names, percents, strict=True)}


def assign_splits(
    labels: Sequence[str | None], groups: Sequence[Hashable], shares: Mapping[str, float], *, seed: int
) -> list[str]:
    """The split of each of N images: groups stay together, and labels have about the same shares.

    Groups are drawn in random order, by their most frequent label, and each goes to the split that lacks most images.
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    units = list(members.values())
    order = np.random.default_rng(seed).permutation(len(units))
    label_of = [Counter(labels[row] or "" for row in unit).most_common(1)[0][0] for unit in units]
    names, wanted = list(shares), np.array(list(shares.values()))
    counts, done, found = np.zeros(len(names)), 0, [""] * len(labels)
    for unit in sorted(order.tolist(), key=lambda number: label_of[number]):
        done += len(units[unit])
        choice = int(np.argmax(wanted * done - counts))
        counts[choice] += len(units[unit])
        for row in units[unit]:
            found[row] = names[choice]
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise InputError(
            f"split: {', '.join(empty)} would have no image, because there are only {len(units)} groups of "
            f"{len(labels)} images; give fewer parts, or split by image"
        )
    return found


LABEL, TAGS, ORIGINAL = "label", "tags", "original_path"
OWN = {"image", "file_name", "path", LABEL, TAGS, SPLIT, ORIGINAL, P_RIGHT, GIVEN}
"""Columns of the data set's own; metadata of such a name gets a `_` behind it."""
REST = "rest"  # the split of images without one, where others have one
BOOL, INT, FLOAT, TEXTS, TEXT = "bool", "int64", "float64", "list<string>", "string"
_MOST_SPLITS = 100
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class DatasetColumn:
    """A column of the data set: name, type, and its value for a row and the row's metadata."""

    name: str
    kind: str
    read: Callable[[CatalogRow, Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What the rows of an export have in common: sorted labels, columns, and number of images by split."""

    images: int
    labels: Sequence[str]
    columns: Sequence[DatasetColumn]
    counts: Mapping[str | None, int]

    def describe(self, row: CatalogRow) -> dict[str, Any]:
        """The values of all columns of a row."""
        metadata = row.metadata
        return {column.name: column.read(row, metadata) for column in self.columns}


def plan_rows(gallery: Gallery, where: Condition | None, *, split: str | None, by_group: bool, seed: int) -> RowPlan:
    """Read all rows once, for types, splits and sizes."""
    shares = None if split is None else parse_shares(split)
    kinds: dict[str, set[str]] = {}
    ids, labels, given = list[int](), list[str | None](), list[str | None]()
    is_tagged = is_judged = False
    trust, shown = read_label_probabilities(gallery.path), printable_path(gallery.path)
    with gallery.catalog() as catalog:
        for row in catalog.rows(status="indexed", where=where):
            ids.append(row.id)
            labels.append(row.label)
            metadata = row.metadata
            own_split = metadata.get(SPLIT)
            given.append(None if isinstance(own_split, dict | list) else as_text(own_split).strip() or None)
            is_tagged = is_tagged or bool(_list_tags(row, metadata))
            is_judged = is_judged or trust.of(row)[0] is not None
            own = (SPLIT, TAGS, P_RIGHT, GIVEN) if P_RIGHT in metadata else (SPLIT, TAGS)
            for name, value in metadata.items():
                if value is not None and name not in own:
                    kinds.setdefault(name, set()).add(_kind(value))
    if not ids:
        raise InputError("no image matches the filter, so nothing is exported", at=shown)
    splits = given
    if shares is not None:
        groups = _find_groups(gallery, ids) if by_group else ids
        splits = list(assign_splits(labels, groups, shares, seed=seed))
    elif any(given):
        splits = [one or REST for one in given]
        if len(known := set(splits)) > _MOST_SPLITS:
            raise InputError(
                f"{shown}: the images have {len(known)} values of split, at most {_MOST_SPLITS} are exported; give "
                "--split, or correct the column"
            )
    split_of = dict(zip(ids, splits, strict=True))
    columns = [DatasetColumn(LABEL, TEXT, lambda row, _: row.label)]
    if is_judged:
        columns.append(DatasetColumn(P_RIGHT, FLOAT, lambda row, _: trust.of(row)[0]))
        columns.append(DatasetColumn(GIVEN, TEXT, lambda row, _: trust.of(row)[1] or row.label))
    if is_tagged:
        columns.append(DatasetColumn(TAGS, TEXTS, _list_tags))
    if splits[0] is not None:
        columns.append(DatasetColumn(SPLIT, TEXT, lambda row, _: split_of[row.id]))
    # Below its source; of a file elsewhere the name alone, as a data set may be published.
    columns.append(DatasetColumn(ORIGINAL, TEXT, lambda row, _: valid_text(hide_folder(row.path))))
    columns += _plan_metadata(kinds)
    return RowPlan(len(ids), sorted(set(filter(None, labels))), columns, Counter(splits))


def _plan_metadata(kinds: Mapping[str, set[str]]) -> Iterator[DatasetColumn]:
    """A column for each name of metadata, whose values have these types."""
    taken = set(OWN)
    for name, found in kinds.items():
        column, kind = name, TEXT
        while column in taken or (column != name and column in kinds):
            column += "_"
        taken.add(column)
        if len(found) == 1:
            kind = next(iter(found))
        elif found == {INT, FLOAT}:
            kind = FLOAT
        yield DatasetColumn(column, kind, partial(_read_metadata, name=name, kind=kind))


def _read_metadata(row: CatalogRow, metadata: Mapping[str, Any], *, name: str, kind: str) -> Any:
    value = metadata.get(name)
    if value is None or kind in (BOOL, INT, TEXTS):
        return value
    if kind == FLOAT:
        return float(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find_groups(gallery: Gallery, ids: list[int]) -> list[int]:
    """The group of each id: images of one scene and near-duplicates; an image of no group is its own."""
    members = read_members(gallery)
    groups = find_groups(members.vectors, number_labels(members.labels)[0], members.group_sources)
    if groups is None:
        return ids
    of = dict(zip(members.ids.tolist(), groups.numbers.tolist(), strict=True))
    return [of[image_id] for image_id in ids]


def _list_tags(row: CatalogRow, metadata: Mapping[str, Any]) -> list[str]:
    """The tags of an image, and those of its metadata, as an import of an export has them."""
    found = metadata.get(TAGS)
    given = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return sorted({*row.tags, *(tag for tag in given if isinstance(tag, str) and tag)})


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return TEXTS if all(isinstance(one, str) for one in value) else TEXT
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INT64:
        return TEXT
    return {bool: BOOL, int: INT, float: FLOAT}.get(type(value), TEXT)
