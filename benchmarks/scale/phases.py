"""What one gallery costs, phase by phase: its seconds, bytes of disk and of memory.

`python -m benchmarks.scale.phases PHASE ...` takes settings as JSON on stdin, runs the phases one after another in this
process, and prints one JSON document of what each gave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.indexing.index_collection import Collection
from benchmarks.scale.scale_gallery import PHOTOS, describe_disk, draw_vectors, make_gallery
from benchmarks.scale.stopwatch import Stopwatch, watching_memory
from index.arrays import Vectors
from index.faiss_library import let_threads_sleep
from index.filters.condition import Condition
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.writing.build import add_to_gallery, remove_from_gallery
from index.writing.publish_change import BuildReport
from index.writing.reindex import tune_gallery
from retrieval_app.insights.facet_filters import count_facets
from retrieval_app.review.backup import back_up

QUERIES = 40
CONDITIONS = 5
_QUERY_SEED = 999_999_937
_SIDE = 128

Result = dict[str, Any]


def make(folder: Path, watch: Stopwatch, *, rows: int, seed: int, **_: Any) -> Result:
    """A new gallery, with a flat index."""
    return {"disk": make_gallery(folder, rows=rows, seed=seed, watch=watch)}


def ask(folder: Path, watch: Stopwatch, *, rows: int, seed: int, catalogue: bool = True, **_: Any) -> Result:
    """Opened, searched by drawn vectors, alone and with filters that were never asked before."""
    with watch.timing("open"):
        gallery = Gallery.open(folder / "gallery")
    queries = draw_vectors(QUERIES, widths=[gallery.width], seed=_QUERY_SEED + seed)
    with watch.timing("first search"):
        gallery.search_many(queries[:1])
    watch.take_median("search", lambda query: gallery.search_many(query[None]), queries)
    if catalogue:
        _ask_catalogue(gallery, watch, queries[:1], rows=rows, seed=seed)
    described = {name: gallery.index.get(name) for name in ("type", "factory", "parameters", "recall_at_10")}
    return {"index": described, "disk": describe_disk(folder / "gallery")}


def _ask_catalogue(gallery: Gallery, watch: Stopwatch, query: Vectors, *, rows: int, seed: int) -> None:
    chosen = np.random.default_rng(seed).choice(rows, size=CONDITIONS, replace=False)
    by_label = [parse_filter(f"label = '{Collection(rows).label(number)}'") for number in chosen.tolist()]
    by_shop = [parse_filter(f"shop = 'shop-{number}'") for number in range(1, 1 + CONDITIONS)]

    def search(where: Condition) -> object:
        return gallery.search_many(query, where=where)

    with watch.timing("first metadata filter"):  # which looks at the metadata of every row once
        search(parse_filter("shop = 'shop-0'"))
    watch.take_median("search, label", search, by_label)
    watch.take_median("search, metadata", search, by_shop)
    with watch.timing("first facets"):  # which looks for the names of metadata
        count_facets(gallery, None)
    with watch.timing("facets"):
        count_facets(gallery, None)


def add_one(folder: Path, watch: Stopwatch, *, seed: int, **_: Any) -> Result:
    """`retrieval index add` of one image."""
    photo = folder / PHOTOS / "new.png"
    pixels = np.random.default_rng(seed).integers(0, 256, size=(_SIDE, _SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(photo)
    with watch.timing("change"):
        report = add_to_gallery(folder / "gallery", [photo])
    return _check(report, new=1)


def remove_one(folder: Path, watch: Stopwatch, *, rows: int, **_: Any) -> Result:
    """`retrieval index remove` of one image, told by its id."""
    with watch.timing("change"):
        report = remove_from_gallery(folder / "gallery", selection=Selection(ids=(rows // 2,)))
    return _check(report, removed=1)


def _check(report: BuildReport, *, new: int = 0, removed: int = 0) -> Result:
    seen = (report.changed, report.new_images, report.removed)
    if seen != (True, new, removed):
        sys.exit(f"a change did (changed, new, removed) {seen}, expected {(True, new, removed)}")
    return {"version": report.version}


def verify(folder: Path, watch: Stopwatch, **_: Any) -> Result:
    """`retrieval index verify`, without embedding a sample again: its images were never there."""
    with watch.timing("verify"):
        report = verify_gallery(folder / "gallery", sample=0)
    if report.problems:
        sys.exit(f"the gallery is damaged: {report.problems[0]}")
    return {"files": report.files}


def save_people(folder: Path, watch: Stopwatch, **_: Any) -> Result:
    """`retrieval backup`: what people made of the gallery, here the one image that was taken out."""
    with watch.timing("backup"):
        back_up(folder / "gallery", folder / "backup.zip", overwrite=True)
    return {"bytes": (folder / "backup.zip").stat().st_size}


def reindex(folder: Path, watch: Stopwatch, *, kind: str, **_: Any) -> Result:
    """`retrieval index tune --index-type`: all is written anew, with another ANN index."""
    steps = Stopwatch(watch.clock)
    with watch.timing("tune"):
        report = tune_gallery(folder / "gallery", changes={"index_type": kind}, begin_step=steps.begin)
    watch.seconds["build index"] = steps.seconds.get("Building index", 0.0)
    watch.seconds["measure index"] = steps.seconds.get("Measuring index", 0.0)
    return {"version": report.version}


PHASES: Mapping[str, Callable[..., Result]] = {
    "make": make, "ask": ask, "add one": add_one, "remove one": remove_one, "verify": verify,
    "backup": save_people, "reindex": reindex,
}  # fmt: skip


def main() -> None:
    settings = json.load(sys.stdin)
    folder, clock = Path(settings.pop("folder")), settings.pop("clock")
    let_threads_sleep()
    results = {}
    for name in sys.argv[1:]:
        watch = Stopwatch(clock)
        with watching_memory() as peak:
            result = PHASES[name](folder, watch, **settings)
        results[name] = {**result, "seconds": watch.seconds, "memory": peak.most}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
