"""What is told of a gallery as a whole, read once for each opened version and its decisions."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from index.catalog.facets import list_columns
from index.filters.condition import Column
from index.filters.to_text import write_column
from index.gallery.gallery import Gallery
from index.text import valid_text
from index.vectors.kinds.registry import KINDS
from retrieval_app.api.schemas import MAX_QUERIES
from retrieval_app.review.selection_files import MAX_PICTURES, MAX_ROWS
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.query import MAX_K
from retrieval_app.serving.serving_config import ServingConfig

MAX_LABELS = 2000
_MAX_COLUMNS = 100
_facts_of: WeakKeyDictionary[Gallery, dict[str, Any]] = WeakKeyDictionary()
_columns_of: WeakKeyDictionary[Gallery, list[str]] = WeakKeyDictionary()
_given_labels_of: WeakKeyDictionary[Gallery, Counter[str]] = WeakKeyDictionary()


def describe_gallery(
    snapshot: Snapshot, *, name: str, can: Mapping[str, bool], config: ServingConfig
) -> dict[str, Any]:
    """The document of /v1/gallery, by the name that it is served by, for one who can do so much.

    Raises:
        GalleryError: the catalogue is damaged.
    """
    gallery = snapshot.gallery
    facts = _facts_of.get(gallery)
    if facts is None:
        facts = _facts_of[gallery] = _read_facts(gallery)
    return {
        "name": valid_text(name),
        **facts,
        "can": can,
        "limits": {
            "max_upload_bytes": config.max_upload_bytes,
            "max_k": MAX_K,
            "max_queries": MAX_QUERIES,
            "max_export_csv": MAX_ROWS,
            "max_export_zip": MAX_PICTURES,
        },
        "calibration": _describe_calibration(snapshot),
    }


def _read_facts(gallery: Gallery) -> dict[str, Any]:
    contract, manifest = gallery.embedder.contract, gallery.manifest
    labels = _count_labels(gallery)
    largest = heapq.nsmallest(MAX_LABELS, labels.items(), key=lambda one: (-one[1], one[0]))
    return {
        "version": gallery.version,
        "images": gallery.count,
        "embedding_dim": manifest.embedding_dim,
        "answers_by": manifest.answers_by,
        "model": {
            "backbone": contract.backbone,
            "method": contract.method,
            "view": contract.view,
            "pooling": contract.pooling,
            "sha256": manifest.model_sha256,
        },
        "labels": {"names": [name for name, _ in largest], "count": len(labels), "labelled": labels.total()},
        "metadata_columns": _list_columns(gallery.as_given),
        "index": {**manifest.index, "explanation": KINDS[manifest.index["type"]].explanation},
    }


def _count_labels(gallery: Gallery) -> Counter[str]:
    """The images of each label: the given ones, counted once, and what decisions change of them."""
    given = gallery.as_given
    counts = _given_labels_of.get(given)
    if counts is None:
        with given.catalog() as catalog:
            counts = _given_labels_of[given] = Counter(catalog.indexed_labels(limit=-1).largest)  # all
    changed = gallery.decided.ids
    members = changed[np.isin(changed, given.ids)].tolist()  # others are duplicates, which do not count
    decided = [gallery.decided.by_id[number] for number in members]
    now = Counter(one.label for one in decided if one.label is not None and not one.is_dropped)
    before = Counter(one.given for one in decided if one.given is not None)
    return counts + now - before


def _list_columns(given: Gallery) -> list[str]:
    """The metadata as conditions name it, what most images have first; decisions change none of it."""
    columns = _columns_of.get(given)
    if columns is None:
        with given.catalog(asks_metadata=True) as catalog:
            columns = [write_column(Column((name,))) for name in list_columns(catalog, limit=_MAX_COLUMNS)]
        _columns_of[given] = columns
    return columns


def _describe_calibration(snapshot: Snapshot) -> dict[str, Any]:
    computed = snapshot.insights.calibration
    return {"state": computed.state, "points": () if computed.value is None else computed.value.points}
