"""`retrieval index info`: a summary of manifest and catalogue, without opening vectors, index or model."""

import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.catalog.reader import Catalog, opened, read_catalog
from index.catalog.rows import GPS_SETTING, SKIP_SETTING
from index.duplicates.duplicate_config import LIMITS_SETTING
from index.errors import GalleryError
from index.model.contract import find_contract
from index.outputs import SEMANTIC
from index.text import command_line, show_bytes, valid_text
from index.vectors.kinds import KINDS
from index.vectors.stores import open_store
from index.versions.manifest import (
    CATALOG_NAME,
    DELETED_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    Manifest,
    check_file,
)
from index.versions.versions import holding_current

_LARGEST_LABELS = 5
_OF_CONTRACT = ("backbone", "method", "view", "pooling", "precision")
# Every search scans vectors beside the index and skips deleted ones; below this it is not noticeable.
_FELT_ROWS = 1024
_FELT_SHARE = 0.05


def read_info(path: Path) -> dict[str, Any]:
    """A summary of the current version: the document of `index info --json`.

    `beside_index` counts vectors added after the index was built; `whole_folder` includes older and unfinished
    versions.
    """
    with holding_current(path) as version:
        manifest = Manifest.read(version)
        check_file(version.folder, CATALOG_NAME, manifest, contents=False)
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            sources = catalog.sources()
            images = (
                catalog.indexed_by_source() if len(sources) > 1 else dict.fromkeys(sources, manifest.counts["indexed"])
            )
            labels = catalog.indexed_labels(limit=_LARGEST_LABELS)
            names = ("dedup", "labels", SKIP_SETTING, GPS_SETTING)
            dedup, label_file, skip_if, gps = (catalog.setting(name) for name in names)
            limits = json.loads(catalog.setting(LIMITS_SETTING) or "{}")
        contract = find_contract(version.folder / MODEL_NAME)
        made = (version.folder / MANIFEST_NAME).stat().st_mtime
        beside = 0 if manifest.store else open_store(version.folder, manifest, SEMANTIC).count_unindexed()
        return {
            "gallery": valid_text(str(path.resolve())),
            "version": version.name,
            "made": datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds"),
            "model": {
                "sha256": manifest.model_sha256,
                **({} if contract is None else {name: getattr(contract, name) for name in _OF_CONTRACT}),
                "embedding_dim": manifest.embedding_dim,
                "preprocessing": manifest.preprocessing.to_json(),
            },
            "counts": manifest.counts,
            "sources": [
                {"kind": source.kind, "location": valid_text(source.location), "images": images.get(number, 0)}
                for number, source in sources.items()
            ],
            "labels": labels,
            "settings": {
                "dedup": dedup or "off",
                **limits,
                "labels": None if label_file is None else valid_text(json.loads(label_file)),
                **({} if skip_if is None else {"skip_if": skip_if}),
                **({} if gps is None else {"gps": "kept"}),
            },
            "index": manifest.index,
            "disk_bytes": _measure(path, manifest),
            "beside_index": beside,
            "should_tune": is_worth_tuning(manifest.counts, beside),
            "unfinished": find_unfinished(path),
            "copy": manifest.copy,
            "runtime": manifest.runtime,
            "text": None if contract is None or contract.text is None else {"token_length": contract.text.token_length},
        }


def is_worth_tuning(counts: Mapping[str, Any], beside: int) -> bool:
    """Whether searches are slower for vectors beside the index and deleted ones."""
    return beside + int(counts["deleted"]) >= max(_FELT_ROWS, _FELT_SHARE * int(counts["indexed"]))


def find_unfinished(path: Path) -> dict[str, int] | None:
    """Progress of a stopped or running command, `done` of `found` items, 0 of 0 if unknown; None without one."""
    folder = path / "building"
    if not folder.is_dir():
        return None
    try:
        with opened(folder / CATALOG_NAME, query="mode=ro") as connection:
            catalog = Catalog(connection)
            done = sum(catalog.count(status) for status in ("indexed", "duplicate", "skipped"))
            return {"found": done + catalog.count("pending"), "done": done}
    except GalleryError:  # not written yet, or of another version: the command that finishes it reports it
        return {"found": 0, "done": 0}


def _measure(path: Path, manifest: Manifest) -> dict[str, int]:
    parts = {"vectors": 0, "index": 0, "catalog": 0, "model": 0}
    names = dict.fromkeys((INDEX_NAME, DELETED_NAME), "index")
    names |= {CATALOG_NAME: "catalog"} | {name: "model" for name in manifest.files if name.startswith("model.")}
    for name, described in manifest.files.items():
        parts[names.get(name.rpartition("/")[2], "vectors")] += described["bytes"]
    files: dict[tuple[int, int], int] = {}  # versions share files
    for folder, _, inside in os.walk(path):
        for name in inside:
            try:
                status = os.stat(os.path.join(folder, name), follow_symlinks=False)
            except FileNotFoundError:  # a writer works on
                continue
            files[status.st_dev, status.st_ino] = status.st_size
    total = sum(parts.values())
    return {
        **parts,
        "total": total,
        "each_image": round((total - parts["model"]) / manifest.counts["indexed"]),
        "whole_folder": sum(files.values()),
    }


def describe_index(described: Mapping[str, Any], *, gallery: Path) -> list[str]:
    """The lines of `index info` on the index."""
    index, rate = described["index"], f"{described['index']['queries_per_second']:,.0f}"
    speed = f"{index['latency_ms_median']:.3g} ms for a query alone, {rate} a second in batches, when it was measured"
    if KINDS[index["type"]].is_exact:
        size = show_bytes(described["disk_bytes"]["vectors"])
        lines = [f"Flat: every search reads all vectors, {size}; {index['reason']}", f"exact; {speed}"]
    else:
        error, met = f"{100 * 2 * index['recall_error']:.1f}", "met" if index["target_met"] else "NOT met"
        lines = [
            f"{index['factory']}, about {show_bytes(index['memory_bytes'])} in memory: {index['reason']}",
            f"finds {_percent(index['recall_at_10'])} (± {error}) of the true 10 nearest, in exact order; "
            f"target {100 * index['recall_target']:g} % {met}",
            speed,
            f"measured with {index['queries']:,} vectors, before it held them; --json has the curve of recall and time",
        ]
        if not index["target_met"]:
            exactly = command_line("tune", gallery, {"--index-type": "flat"})
            lines.append(f"for the target, search exactly: {exactly}")
    deleted = int(described["counts"]["deleted"])
    if described["beside_index"] or deleted:
        advice = f"worth {command_line('tune', gallery)}" if described["should_tune"] else "too few to matter"
        lines.append(f"vectors added since: {described['beside_index']:,}, deleted: {deleted:,}; {advice}")
    return lines


def _percent(share: float) -> str:
    """Rounded down: only all is 100 %."""
    return f"{math.floor(round(1e4 * share, 6)) / 100:.2f} %"
