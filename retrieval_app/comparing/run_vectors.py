"""Vectors of a training run: cached features of its backbone, through its head."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from export.exports import export_run
from index.durable import hash_file
from index.progress import Progress
from retrieval_app.comparing.embedding import Embedded, Photos, embed_model
from retrieval_app.comparing.public import Candidate
from training.backbone.extract import extract_features, open_store
from training.options.machine import resolve_device
from training.run.features import reopen_extractor
from training.run.run_folder import RunFolder
from training.run.searches import embed_features


def embed_run(candidate: Candidate, photos: Photos, *, cache: Path, workers: int, progress: Progress) -> Embedded:
    """Embed the images with a finished run, and count those that it was trained on.

    Features come from the cache that runs of one backbone share. Images in archives are embedded by the exported model.

    Raises:
        RunError: the run is not finished, or damaged.
    """
    run = RunFolder.open(candidate.path)
    trained = {image.sha256 for image in run.read_labels() or ()}
    seen = sum(photo.sha256 in trained for photo in photos.photos)
    if any(photo.place.offset is not None or photo.place.store is not None for photo in photos.photos):
        model = replace(candidate, path=_export(run, cache / "exports"))
        embedded = embed_model(model, photos, cache=cache, workers=workers, progress=progress)
    else:
        embedded = _embed_files(run, candidate, photos, cache=cache, workers=workers, progress=progress)
    return replace(embedded, candidate=candidate, trained_on=seen, run_id=run.run_id)


def _embed_files(
    run: RunFolder, candidate: Candidate, photos: Photos, *, cache: Path, workers: int, progress: Progress
) -> Embedded:
    backbone, head, _ = run.load_trained()
    device = resolve_device("auto")
    extractor = reopen_extractor(run, backbone, device=device, cache=cache)
    store = open_store(cache, extractor)  # which every run of the backbone can share
    start = time.perf_counter()
    extracted = extract_features(
        [photo.place.file for photo in photos.photos],
        store=store,
        extractor=extractor,
        workers=workers,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    reasons = {skipped.path: skipped.reason for skipped in extracted.skipped}
    problems = {
        row: reasons.get(photo.place.file, "changed")
        for row, photo in enumerate(photos.photos)
        if photo.sha256 not in store
    }
    usable = [row for row in range(len(photos.photos)) if row not in problems]
    vectors = np.zeros((len(photos.photos), head.embedding_dim), dtype=np.float32)
    if usable:
        loaded = np.ascontiguousarray(store.load([photos.photos[row].sha256 for row in usable])[:, 0])
        with torch.inference_mode():
            vectors[usable] = embed_features(head.to(device), loaded)
    computed = extracted.computed
    return Embedded(
        candidate,
        vectors,
        problems,
        embedded=computed,
        from_cache=len(usable) - computed,
        per_second=computed / seconds if 2 * computed > len(usable) else None,  # else it mostly read
    )


def _export(run: RunFolder, folder: Path) -> Path:
    """The run's model file, exported once for its weights."""
    weights = [hash_file(file)[:16] for file in (run.exported_backbone, run.path / "head.safetensors")]
    model = folder / f"{run.run_id}-{'-'.join(weights)}.onnx"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        export_run(run.path, model)
    return model
