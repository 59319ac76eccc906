"""Preview of an upgrade: a sample of a gallery's images with its model and with another one; nothing is changed."""

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from index.arrays import Ids, Vectors
from index.catalog.rows import CatalogRow
from index.durable import hash_file
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.items import FoundItem
from index.model.contract import find_contract
from index.progress import StepProgress, no_progress
from index.text import valid_text
from index.threads import usable_cores
from index.vectors.exact import search
from retrieval_app.comparing.compare_report import evaluate_candidates, format_report
from retrieval_app.comparing.embedding import Images, embed_candidates
from retrieval_app.comparing.public import MODEL, Candidate

_NEIGHBOURS = 10


def preview_upgrade(
    gallery: Path, model: Path, *, count: int, workers: int = 0, progress: StepProgress = no_progress
) -> dict[str, Any]:
    """Compare both models on a sample: the report of `retrieval compare`, with time, bytes and neighbours.

    Labelled images are drawn in pairs of one label, so that each has one to find. Without pairs nothing is scored.
    """
    opened = Gallery.open(gallery)
    if hash_file(model) == opened.embedder.sha256:
        raise InputError("the gallery has this model already, so there is nothing to compare", at=model)
    with opened.catalog() as catalog:
        ids, is_labelled = _draw_sample(opened.ids, catalog.labels(status="indexed"), count=count)
    rows = opened.rows(ids.tolist())
    places = [replace(opened.sources[row.source].locate(row), sha256=row.sha256) for row in rows]
    images = Images(str(gallery), [_as_found(row) for row in rows], places, Counter())
    candidates = [Candidate("now", MODEL, opened.embedder.path), Candidate("new", MODEL, model)]
    with TemporaryDirectory() as cache:  # an empty one, so that both are timed
        workers = workers or usable_cores()
        images = embed_candidates(candidates, images, cache=Path(cache), workers=workers, progress=progress)
    return {
        **(evaluate_candidates(images, candidates, ks=(1,)).report if is_labelled else {}),
        "gallery": valid_text(str(gallery)),
        "model": valid_text(str(model)),
        "images_in_gallery": opened.count,
        "sample": len(images.items),
        "same_neighbours": _share_neighbours(*(one.vectors for one in candidates)),
        "seconds_per_image": {one.name: 1 / one.per_second for one in candidates if one.per_second},
        "bytes_per_image": {
            one.name: 4 * sum(contract.widths.values()) for one in candidates if (contract := find_contract(one.path))
        },
    }


def _draw_sample(ids: Ids, labels: list[str | None], *, count: int) -> tuple[Ids, bool]:
    """Rising ids of at most `count` images: of random pairs with one label where there are any, else of any images."""
    order = np.random.default_rng(0).permutation(len(ids)).tolist()
    by_label = defaultdict[str, list[int]](list)
    for row in order:
        if (label := labels[row]) is not None:
            by_label[label].append(row)
    pairs = [rows[start : start + 2] for rows in by_label.values() for start in range(0, len(rows) - 1, 2)]
    place = {row: position for position, row in enumerate(order)}
    pairs.sort(key=lambda pair: place[pair[0]])
    chosen = [row for pair in pairs[: max(1, count // 2)] for row in pair]
    return np.sort(ids[chosen or order[:count]]), bool(chosen)


def _as_found(row: CatalogRow) -> FoundItem:
    place = row.path, row.size_bytes, row.mtime_ns, row.archive, row.starts_at
    return FoundItem(*place, label=row.label, metadata=row.metadata or None)


def _share_neighbours(first: Vectors, second: Vectors) -> float | None:
    """The mean share of the 10 images nearest to each by one model that are among those of the other."""
    rows, k = np.arange(len(first)), min(_NEIGHBOURS, len(first) - 1)
    if k < 1:
        return None
    one, other = (search(vectors, vectors, k=k, own=rows) for vectors in (first, second))
    shared = [len({row for row, _ in one.of(query)} & {row for row, _ in other.of(query)}) for query in rows.tolist()]
    return float(np.mean(shared)) / k


def format_preview(report: dict[str, Any]) -> str:
    """The preview for people."""
    count, unscored = report["images_in_gallery"], "no label has two images, so nothing says which model is better"
    lines = [format_report(report) if "pairs" in report else unscored]
    lines.append(f"a sample of {report['sample']:,} of {count:,} images, in which fewer images compete")
    if report["same_neighbours"] is not None:
        lines.append(f"{100 * report['same_neighbours']:.0f} % of the {_NEIGHBOURS} nearest images are the same")
    for name, size in report["bytes_per_image"].items():
        seconds = report["seconds_per_image"].get(name, 0.0)
        whole = f"{seconds * count / 60:,.1f} min and {size * count / 1e6:,.1f} MB for all images"
        lines.append(f"{name}: {1000 * seconds:,.1f} ms and {size:,} bytes per image, {whole}")
    return "\n".join(lines)
