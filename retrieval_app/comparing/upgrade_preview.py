"""Preview of an upgrade: a sample of a gallery's images with its model and with another one; nothing is changed."""

from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from index.arrays import Ids, Vectors
from index.catalog.rows import CatalogRow
from index.gallery.gallery import Gallery
from index.items import FoundItem
from index.model.contract import find_contract
from index.progress import StepProgress, no_progress
from index.text import align, printable_path, valid_text
from index.threads import usable_cores
from index.vectors.exact import search
from retrieval_app.comparing.compare_report import evaluate_candidates, format_bounds
from retrieval_app.comparing.embedding import Images, embed_candidates
from retrieval_app.comparing.public import MODEL, Candidate

_NEIGHBOURS = 10


def preview_upgrade(
    gallery: Path, model: Path, *, count: int, workers: int = 0, progress: StepProgress = no_progress
) -> dict[str, Any]:
    """Compare both models on a sample: time and bytes of each image, neighbours, and Recall@1 by labels as decided.

    Labelled images are drawn in pairs of one label, so that each has one to find. Recall@1 is null without pairs.
    """
    opened = Gallery.open(gallery)
    with opened.catalog() as catalog:
        ids, is_labelled = _draw_sample(opened.ids, catalog.labels(status="indexed"), count=count)
    rows = opened.rows(ids.tolist())
    images = Images(str(gallery), [_as_found(row) for row in rows], [opened.place_of(row) for row in rows], Counter())
    candidates = [Candidate("now", MODEL, opened.embedder.path), Candidate("new", MODEL, model)]
    with TemporaryDirectory() as cache:  # an empty one, so that both are timed
        workers = workers or usable_cores()
        images = embed_candidates(candidates, images, cache=Path(cache), workers=workers, progress=progress)
    found = evaluate_candidates(images, candidates, ks=(1,)).report if is_labelled else None
    models = []
    for number, one in enumerate(candidates):
        contract = find_contract(one.path)
        models.append(
            {
                "name": one.name,
                "backbone": None if contract is None else valid_text(contract.backbone),
                "width": one.vectors.shape[1],
                "seconds_per_image": None if one.per_second is None else 1 / one.per_second,
                "bytes_per_image": 4 * (one.vectors.shape[1] if contract is None else sum(contract.widths.values())),
                "recall_at_1": None if found is None else found["candidates"][number]["recall"]["1"],
            }
        )
    pair = {} if found is None else found["pairs"][0]
    return {
        "gallery": valid_text(str(gallery)),
        "model": valid_text(str(model)),
        "images": opened.count,
        "sample": len(images.items),
        "models": models,
        "recall_at_1": pair.get("recall_at_1"),
        "verdict": pair.get("verdict"),
        "enough_differ": pair.get("enough_differ"),
        "same_neighbours": _share_neighbours(*(one.vectors for one in candidates)),
        "skipped": dict(images.skipped),
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
    table = [("", "backbone", "width", "ms/image", "bytes/image", "Recall@1 in the sample, %")]
    for one in report["models"]:
        seconds, recall = one["seconds_per_image"], one["recall_at_1"]
        table.append(
            (
                one["name"],
                printable_path(one["backbone"] or "-"),
                f"{one['width']}",
                "-" if seconds is None else f"{1000 * seconds:,.1f}",
                f"{one['bytes_per_image']:,}",
                "-" if recall is None else format_bounds(recall),
            )
        )
    lines = align(table, right={2, 3, 4})
    lines.append(f"on {report['sample']:,} of {report['images']:,} images; in brackets 95 % intervals")
    if report["recall_at_1"] is None:
        lines.append("no label has two images, so nothing says which model is better")
    else:
        verdicts = {"better": "the new model is better", "worse": "the new model is worse"}
        few = "" if report["enough_differ"] else ": too few images differ"
        said = verdicts.get(report["verdict"], f"not clear which is better{few}")
        lines.append(
            f"Recall@1 of the new model less that of the gallery's: {format_bounds(report['recall_at_1'], '+')}: {said}"
        )
    if report["same_neighbours"] is not None:
        lines.append(f"{100 * report['same_neighbours']:.0f} % of the {_NEIGHBOURS} nearest images are the same")
    new = report["models"][1]
    if new["seconds_per_image"] is not None:
        minutes, size = report["images"] * new["seconds_per_image"] / 60, report["images"] * new["bytes_per_image"]
        lines.append(f"the upgrade: some {minutes:,.1f} min on this machine, {size / 1e6:,.1f} MB of vectors")
    if report["skipped"]:
        lines.append("skipped: " + ", ".join(f"{count:,} {reason}" for reason, count in report["skipped"].items()))
    return "\n".join(lines)
