"""Vectors of a training run: cached features of its backbone, through its head."""

import time
from pathlib import Path

import numpy as np
import torch

from export.exports import export_run
from index.durable import hash_file
from index.model.embedder import Embedder
from index.progress import Progress
from retrieval_app.comparing.embedding import Images, embed_model
from retrieval_app.comparing.public import Candidate
from training.backbone.extract import extract_features, open_store
from training.options.machine import resolve_device
from training.run.features import reopen_extractor
from training.run.run_folder import RunFolder
from training.run.searches import embed_features


def embed_run(candidate: Candidate, images: Images, *, cache: Path, workers: int, progress: Progress) -> None:
    """Embed the images with a finished run, and count those that it was trained on.

    Features come from the cache that runs of one backbone share. Images in archives are embedded by the exported model.

    Raises:
        RunError: the run is not finished, or damaged.
    """
    run = RunFolder.open(candidate.path)
    if any(place.offset is not None or place.store is not None for place in images.places):
        embedder = Embedder(_export(run, cache / "exports"), threads=1)
        embed_model(candidate, images, embedder, known={}, cache=cache, workers=workers, progress=progress)
    else:
        _embed_files(run, candidate, images, cache=cache, workers=workers, progress=progress)
    trained = {image.sha256 for image in run.read_labels() or ()}
    candidate.trained_on = sum(place.sha256 in trained for place in images.places)
    candidate.run_id = run.run_id


def _embed_files(
    run: RunFolder, candidate: Candidate, images: Images, *, cache: Path, workers: int, progress: Progress
) -> None:
    backbone, head, _ = run.load_trained()
    device = resolve_device("auto")
    extractor = reopen_extractor(run, backbone, device=device, cache=cache)
    store = open_store(cache, extractor)  # which every run of the backbone can share
    start = time.perf_counter()
    extracted = extract_features(
        [place.file for place in images.places], store=store, extractor=extractor, workers=workers, progress=progress
    )
    seconds = time.perf_counter() - start
    reasons = {skipped.path: skipped.reason for skipped in extracted.skipped}
    keys = [str(place.sha256) for place in images.places]
    candidate.problems = {
        row: reasons.get(images.places[row].file, "changed") for row, key in enumerate(keys) if key not in store
    }
    usable = [row for row in range(len(keys)) if row not in candidate.problems]
    candidate.vectors = np.zeros((len(keys), head.embedding_dim), dtype=np.float32)
    if usable:
        loaded = np.ascontiguousarray(store.load([keys[row] for row in usable])[:, 0])
        with torch.inference_mode():
            candidate.vectors[usable] = embed_features(head.to(device), loaded)
    candidate.embedded, candidate.from_cache = extracted.computed, len(usable) - extracted.computed
    if 2 * extracted.computed > len(usable):  # else it mostly read
        candidate.per_second = extracted.computed / seconds


def _export(run: RunFolder, folder: Path) -> Path:
    """The run's model file, exported once for its weights."""
    weights = [hash_file(file)[:16] for file in (run.exported_backbone, run.path / "head.safetensors")]
    model = folder / f"{run.run_id}-{'-'.join(weights)}.onnx"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        export_run(run.path, model)
    return model
