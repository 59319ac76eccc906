"""Publishing of a gallery as a folder of static files, which is searched in the browser without a server."""

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors, number_labels
from index.catalog.rows import CatalogRow
from index.errors import ImageError, InputError
from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.markers import read_mark
from index.progress import BeginStep, Progress, no_steps
from index.sources.local_source import find_folder_around
from index.text import printable_path
from index.threads import map_ahead, usable_cores
from index.versions.manifest import MODEL_NAME
from retrieval_app.insights.background import Insights, Name
from retrieval_app.publish.catalogue import Choice, describe_public
from retrieval_app.publish.document import Texts, draw_site, list_scripts
from retrieval_app.publish.site_folder import SiteFolder, open_site, short_hash
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.serving.live_gallery import CACHE_FOLDER
from retrieval_app.serving.photos import encode_image

_RUNTIME = {  # files of the npm package onnxruntime-web 1.30.0, with their SHA-256 there, unpacked
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm.gz": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
THUMBNAILS = "Thumbnails"  # the first step
_ORIGINAL_SIDE = 16_383  # the longest side of a WebP
_SHARD_IDS = 16_384
_READ_AHEAD = 8
_FIRST_IMAGES = 36  # on the first screen: samples, and the first cards
_MOST_UPLOAD_BYTES = 100_000_000
_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class PublishReport:
    """A published gallery: images, sizes in bytes, and files written and removed; `left_out` cannot be read."""

    out: str
    images: int
    total_bytes: int
    first_screen_bytes: int
    first_search_bytes: int
    first_photo_bytes: int
    written: int
    removed: int
    left_out: tuple[str, ...]


def publish_gallery(
    gallery: Gallery,
    out: Path,
    *,
    choice: Choice,
    texts: Texts,
    where: Condition | None = None,
    side: int = 256,
    preview: int = 0,
    with_map: bool = True,
    steps: BeginStep = no_steps,
) -> PublishReport:
    """Write the site, or what changed of it since it was published to this folder.

    Args:
        side: longer side of thumbnails in pixels.
        preview: that of the images in the details; 0: these are thumbnails, or originals if they are chosen.
    """
    if (around := find_folder_around(out, gallery.path, gallery.sources.values())) is not None:
        raise InputError(f"--out {printable_path(out)} lies inside {printable_path(around)}; choose a place beside it")
    preview = _ORIGINAL_SIDE if choice.originals else preview
    with open_site(out) as site, closing(Insights(gallery, cache=gallery.path / CACHE_FOLDER)) as insights:
        rows, left_out = _write_images(gallery, site, where, sides=[side, preview], progress=steps(THUMBNAILS))
        if not rows:
            raise InputError("no image of it can be published", at=gallery.path)
        ids = [row.id for row, _ in rows]
        values = [describe_public(gallery, row, choice) for row, _ in rows]
        catalogue = {
            "ids": ids,
            "images": "".join(name for _, name in rows),
            "own": choice.own,
            "values": {name: [row[name] for row in values] for name in values[0]},
            "groups": _group(_wait(insights, "duplicates", steps("Near-duplicates")), ids),
        }
        is_labelled = "label" in choice.own
        data: dict[str, Any] = {
            "facts": _describe(gallery, texts, choice, ids),
            "side": side,
            "preview": preview,
            "catalogue": _put_json(site, "catalogue", catalogue),
            "vectors": list(_write_vectors(gallery, site, ids)),
            "map": _write_map(insights, site, ids, is_labelled, steps("Map")) if with_map else None,
            **_write_model(gallery, site),
        }
        scripts = list_scripts()
        folder = f"page-{short_hash(b''.join(name.encode() + content for name, content in scripts.items()))}"
        for name, content in scripts.items():
            site.keep(f"{folder}/{name}", partial(bytes, content))
        site.finish(draw_site(folder, scripts, data, texts, choice=choice).encode())
    return _report(out, site, data, left_out)


def _write_images(
    gallery: Gallery, site: SiteFolder, where: Condition | None, *, sides: Sequence[int], progress: Progress
) -> tuple[list[tuple[CatalogRow, str]], list[str]]:
    """Write images of these sides; rows with their file names, and the paths of images that cannot be read."""
    secret = read_mark(gallery.path) or ""

    def write(row: CatalogRow) -> tuple[CatalogRow, str]:
        # The hash of an original would tell who has it; this name stays the same for the same image, too.
        content = row.sha256 or f"{row.source} {row.path} {row.size_bytes} {row.mtime_ns}"
        name = short_hash(f"{secret} {content}".encode("utf-8", "surrogateescape"))
        try:
            for side in filter(None, sides):
                site.keep(f"images/{name[:2]}/{name}-{side}.webp", partial(encode_image, gallery, row.id, side=side))
        except (ImageError, InputError):
            return row, ""
        return row, name

    written, left_out = list[tuple[CatalogRow, str]](), list[str]()
    total = gallery.count if where is None else len(gallery.matching_ids(where))
    with gallery.catalog() as catalog:
        rows = catalog.rows(status="indexed", where=where)
        with closing(map_ahead(write, rows, workers=usable_cores(), ahead=_READ_AHEAD)) as done:
            for number, (row, name) in enumerate(done, start=1):
                if name:
                    written.append((row, name))
                else:
                    left_out.append(printable_path(row.path))
                progress(number, total)
    return written, left_out


def _group(duplicates: DuplicateReport, ids: Sequence[int]) -> list[list[int]]:
    """Groups of near-duplicates among the images that are published."""
    here = set(ids)
    groups = [[image.id for image in group.images if image.id in here] for group in duplicates.groups]
    return [group for group in groups if len(group) > 1]


def _write_vectors(gallery: Gallery, site: SiteFolder, ids: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Write the vectors in shards by id, so that a new image changes the last one alone."""
    numbers = np.array(ids, dtype=np.int64)
    for block in np.unique(numbers // _SHARD_IDS):
        own = numbers[numbers // _SHARD_IDS == block]
        content = quantise(gallery.vectors(own))
        yield {"file": site.put_hashed("vectors", content, suffix=".bin"), "count": len(own)}


def quantise(vectors: Vectors) -> bytes:
    """(N,) float32 scales, then (N, D) int8 rows, whose products are the (N, D) vectors."""
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12) / 127
    return bytes(scales.astype("<f4").tobytes() + np.rint(vectors / scales[:, None]).astype(np.int8).tobytes())


def _write_model(gallery: Gallery, site: SiteFolder) -> dict[str, Any]:
    """Write the model and its runtime for browsers; their paths, and the preprocessing."""
    contract = gallery.embedder.contract
    model = gallery.embedder.path
    assert model.name == MODEL_NAME
    runtime = files("retrieval_app.publish").joinpath("runtime")
    script, packed = (runtime.joinpath(name).read_bytes() for name in _RUNTIME)
    for (name, wanted), content in zip(_RUNTIME.items(), (script, gzip.decompress(packed)), strict=True):
        if hashlib.sha256(content).hexdigest() != wanted:
            raise InputError(f"{name} of the package is damaged; install retrieval-app again")
    licence = runtime.joinpath("LICENSE").read_bytes()
    site.put_hashed("runtime-licence", licence, suffix=".txt")
    return {
        "model": site.put_hashed("model", model.read_bytes(), suffix=".bin"),
        "runtime": site.put_hashed("runtime", script, suffix=".js"),
        "program": site.put_hashed("runtime", packed, suffix=".bin"),
        "preprocess": contract.preprocess.to_json(),
    }


def _write_map(insights: Insights, site: SiteFolder, ids: Sequence[int], is_labelled: bool, progress: Progress) -> str:
    _wait(insights, "map", progress)
    layout = insights.map.value
    assert layout is not None
    here = set(ids)
    places = [place for place, number in enumerate(layout.ids) if number in here]
    names = [
        layout.labels[layout.label[place]] if is_labelled and layout.label[place] >= 0 else None for place in places
    ]
    label, labels = number_labels(names)
    document = {
        "state": "ready",
        "version": "",
        "method": layout.method,
        "total": len(ids),
        "sampled": len(places) < len(ids),
        **{name: [getattr(layout, name)[place] for place in places] for name in ("ids", "x", "y")},
        "label": label.tolist(),
        "labels": labels,
        "cluster": [],
        "clusters": [],
    }
    return _put_json(site, "map", document)


def _wait(insights: Insights, name: Name, progress: Progress) -> Any:
    """A result for the whole gallery, computed or kept from before."""
    while (found := insights.wait(name, timeout=_WAIT_S)).state == "computing":
        progress(found.done, found.total)
    if found.value is None:
        raise InputError(f"the {name} cannot be computed: {found.message}")
    return found.value


def _describe(gallery: Gallery, texts: Texts, choice: Choice, ids: Sequence[int]) -> dict[str, Any]:
    """The document of GET /v1/gallery for a visitor who may only look; the page counts the labels."""
    contract = gallery.embedder.contract
    limits = {"max_upload_bytes": _MOST_UPLOAD_BYTES, "max_k": 1000, "max_queries": 16}
    return {
        "name": texts.title,
        "folder": None,
        "version": "",
        "images": len(ids),
        "next_id": ids[-1] + 1,
        "embedding_dim": gallery.width,
        "similarity": ["semantic"],
        "model": {name: getattr(contract, name) for name in ("backbone", "method", "view", "pooling")},
        "metadata_columns": choice.metadata,
        "index": {},
        "calibration": {"state": "ready", "points": []},
        "permissions": dict.fromkeys(("review", "write", "move"), False),
        "limits": {**limits, "max_export_csv": 0, "max_export_zip": 0},
    }


def _put_json(site: SiteFolder, name: str, document: Any) -> str:
    content = json.dumps(document, separators=(",", ":")).encode()
    return site.put_hashed(name, _pack(content), suffix=".bin")


def _pack(content: bytes) -> bytes:
    """Compressed here, as many hosts send files as they are."""
    return gzip.compress(content, mtime=0)


def _report(out: Path, site: SiteFolder, data: dict[str, Any], left_out: Sequence[str]) -> PublishReport:
    sizes = site.sizes
    suffix = f"-{data['side']}.webp"
    thumbnails = [size for path, size in sizes.items() if path.endswith(suffix)]
    scripts = sum(size for path, size in sizes.items() if path.startswith("page-"))
    few = sum(thumbnails) * min(_FIRST_IMAGES, len(thumbnails)) // len(thumbnails)
    return PublishReport(
        out=printable_path(out),
        images=data["facts"]["images"],
        total_bytes=sum(sizes.values()),
        first_screen_bytes=sizes["index.html"] + scripts + sizes[data["catalogue"]] + few,
        first_search_bytes=sum(sizes[shard["file"]] for shard in data["vectors"]),
        first_photo_bytes=sum(sizes[data[name]] for name in ("model", "runtime", "program")),
        written=site.written,
        removed=site.removed,
        left_out=tuple(left_out),
    )
