"""Feature selection: view and pooling for these images, evaluated on a sample before all features are extracted.

Candidates are evaluated without training: each photo of the sample searches the others by half-whitened PCA.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from index.arrays import Floats, Labels
from index.errors import InputError
from training.backbone.backbones import Backbone, layout_of, with_features
from training.backbone.extract import FeatureStore, open_store
from training.backbone.pooling import average_views
from training.confidence.duplicates import find_duplicates
from training.data.datasets import Record, keep_usable_classes
from training.head.untrained import count_directions, fit_untrained
from training.options.config import AUTO, POOLINGS, VIEW_COSTS, InputConfig
from training.run.features import extract_together
from training.run.phases import Job
from training.run.prepare import label_images, open_extractor
from training.run.run_folder import FEATURE_SELECTION
from training.run.searches import ValidationSet, embed_features
from training.run.verdict import measure_lead

FEWEST_IMAGES, MOST_IMAGES = 100, 1000  # of whole classes: drawing ends with the class that makes them as many
SHARE = 0.1  # of the views of images that a run extracts: what the sample may cost
LEAST_CLASSES = 100  # where there are so many: larger classes give some of their images
_EVERY = "every"
_IMAGES_A_DIRECTION = 4  # of PCA: of as many directions as images, whitening leaves nothing to find


@dataclass(frozen=True, slots=True)
class Candidate:
    """A view and a pooling of a backbone, and the width F of their features."""

    view: str
    pooling: str
    feature_dim: int

    def to_json(self) -> dict[str, Any]:
        """For the run and its report, with the passes of the backbone per image."""
        return {**asdict(self), "passes": VIEW_COSTS[self.view]}


def list_candidates(network: Backbone, sizes: InputConfig, *, embedding_dim: int) -> list[Candidate]:
    """Candidates that the options allow, the usual one first; narrower than the embedding only if all are."""
    found = [
        Candidate(view, pooling, width)
        for view in sizes.allowed_views
        for pooling, width in _list_poolings(network, sizes)
    ]
    return [one for one in found if one.feature_dim >= embedding_dim] or found


def _list_poolings(network: Backbone, sizes: InputConfig) -> Iterator[tuple[str, int]]:
    if sizes.pooling != AUTO:
        yield sizes.pooling, with_features(network, pooling=sizes.pooling, side=sizes.crop).feature_dim
        return
    try:
        layout = layout_of(network, pooling=AUTO, side=sizes.crop)
    except InputError:
        yield "own", network.feature_dim
        return
    yield from ((pooling, layout.feature_dim(pooling)) for pooling in POOLINGS)


@dataclass(frozen=True, slots=True)
class Sample:
    """Usable images: (N,) int64 labels for training, and (N, F) float32 features by candidate."""

    hashes: Sequence[str]
    labels: Labels
    features: Mapping[Candidate, Floats]


def draw_sample(labels: Sequence[str], *, images: int, seed: int) -> np.ndarray:
    """Sorted int64 rows of about `images` images, two at least of each class, in whole classes where they fit."""
    classes, numbers, sizes = np.unique(np.array(labels), return_inverse=True, return_counts=True)
    generator = np.random.default_rng(seed)
    usable = [label for label in generator.permutation(len(classes)) if sizes[label] >= 2]
    most = max(2, images // max(1, min(LEAST_CLASSES, len(usable))))
    drawn: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    for label in usable:
        if sum(map(len, drawn)) >= images:
            break
        drawn.append(generator.permutation(np.flatnonzero(numbers == label))[:most])
    return np.sort(np.concatenate(drawn))


def afford_images(candidates: Sequence[Candidate], *, views: int) -> int:
    """Size of the sample in a run that extracts this many views; 0 where it would be too small."""
    images = int(SHARE * views / len(_list_views(candidates)))
    return 0 if images < FEWEST_IMAGES else min(images, MOST_IMAGES)


def _list_views(candidates: Sequence[Candidate]) -> list[str]:
    """Views to extract."""
    views = {candidate.view for candidate in candidates}
    return [view for view in ("crop", "whole") if view in views or "both" in views]


def read_sample(
    job: Job, records: Sequence[Record], candidates: Sequence[Candidate], *, images: int, network: Backbone
) -> Sample:
    """Draw a sample of the records, label it as for training, and extract every view; unusable images are left out."""
    config, noise = job.config, job.config.data.noise
    usable = keep_usable_classes([record.label for record in records])[0]
    records = [record for record, kept in zip(records, usable, strict=True) if kept]
    labels = [record.label for record in records]
    by_features = noise is not None and noise.reads_features  # of which the sample's alone are known
    if not by_features:
        labels = label_images(labels, features=lambda: np.empty((0, 0), dtype=np.float32), config=config)
    rows = draw_sample(labels, images=images, seed=config.seed)
    hashes, features = _extract(job, [records[row].path for row in rows], candidates, network=network)
    labels = [labels[row] for row in rows[list(hashes)]]
    if by_features:
        labels = label_images(labels, features=lambda: features[candidates[0]], config=config)
    numbers = np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64)
    return Sample(list(hashes.values()), numbers, features)


def _extract(
    job: Job, paths: Sequence[Path], candidates: Sequence[Candidate], *, network: Backbone
) -> tuple[dict[int, str], dict[Candidate, Floats]]:
    """Hashes of the usable images by place in `paths`, and their features."""
    sizes, views = job.config.input, _list_views(candidates)
    poolings = {candidate.pooling for candidate in candidates}
    pooling = _EVERY if len(poolings) > 1 else poolings.pop()
    stores: dict[str, FeatureStore] = {}
    found: list[dict[int, str]] = []
    for number, view in enumerate(views):

        def tell(done: int, total: int, before: int = number) -> None:
            job.watcher.on_images("feature_selection", before * total + done, len(views) * total)

        extractor = open_extractor(network, sizes, view=view, pooling=pooling, machine=job.machine)
        stores[view], extracted = extract_together(paths, extractor=extractor, machine=job.machine, progress=tell)
        found.append(dict(zip(extracted.rows.tolist(), extracted.hashes, strict=True)))
    hashes = {row: sha256 for row, sha256 in found[0].items() if all(row in others for others in found)}
    if not hashes:
        return {}, {one: np.empty((0, one.feature_dim), dtype=np.float32) for one in candidates}
    features: dict[Candidate, Floats] = {}
    for one in candidates:
        seen = views if one.view == "both" else [one.view]
        parts = [torch.from_numpy(stores[view].load(list(hashes.values()))[:, 0]) for view in seen]
        if pooling == _EVERY:
            layout = layout_of(network, pooling=one.pooling, side=sizes.crop)
            parts = [layout.select(part, one.pooling) for part in parts]
        features[one] = (average_views(parts) if one.view == "both" else parts[0]).numpy()
    return hashes, features


def select_features(
    job: Job, records: Sequence[Record], candidates: Sequence[Candidate], *, views: int, network: Backbone
) -> Candidate:
    """View and pooling of the run: selected once, and the same after a resume.

    `views` is the number of views that the run extracts; the sample costs a tenth of them.
    """

    def choose_candidate() -> dict[str, Any]:
        is_open, images = len(candidates) > 1, afford_images(candidates, views=views)
        if not is_open or not images:
            counts = {"images": len(records) if is_open else 0, "classes": 0}
            return {**candidates[0].to_json(), **counts, "tried": []}
        sample = read_sample(job, records, candidates, images=images, network=network)
        tried = try_candidates(sample, embedding_dim=job.config.embedding.width, seed=job.config.seed)
        counts = {"images": len(sample.labels), "classes": len(np.unique(sample.labels))}
        best = candidates[choose(tried) if tried else 0]
        if best.view != "both":  # a run by torch extracts no image of the sample again
            extractor = open_extractor(
                network, job.config.input, view=best.view, pooling=best.pooling, machine=job.machine
            )
            store = open_store(job.machine.cache, extractor)
            if new := {sha256: row for row, sha256 in enumerate(sample.hashes) if sha256 not in store}:
                store.add(list(new), sample.features[best][list(new.values()), None])
        return {**best.to_json(), **counts, "tried": tried}

    chosen = job.run.keep_json(FEATURE_SELECTION, choose_candidate)
    return next(one for one in candidates if (one.view, one.pooling) == (chosen["view"], chosen["pooling"]))


def try_candidates(sample: Sample, *, embedding_dim: int, seed: int) -> list[dict[str, Any]]:
    """Recall@1 of each candidate as JSON; empty where nothing can be found.

    Near-duplicates, by the features of the first candidate, do not find each other. Groups are not searched for: their
    signs mislead in a sample.
    """
    count = len(sample.labels)
    if count < 2 * _IMAGES_A_DIRECTION:
        return []
    usual = next(iter(sample.features.values()))
    copies = find_duplicates(usual, sample.labels, hashes=sample.hashes).groups
    searched = ValidationSet(usual, sample.labels, ks=(1,), groups=copies)
    if not searched.can_find():
        return []
    found = []
    for features in sample.features.values():
        width = min(embedding_dim, count_directions(features), count // _IMAGES_A_DIRECTION)
        head = fit_untrained("pca-half-whitened", features, embedding_dim=width)
        found.append(searched.score(embed_features(head, features)))
    tried = []
    for one, scores in zip(sample.features, found, strict=True):
        lead, interval = measure_lead(
            scores.hits[1], found[0].hits[1], found[0].labels, seed=seed, comparisons=max(1, len(found) - 1)
        )
        figures = {"recall_at_1": scores.recall[1], "difference": lead, "difference_interval": interval}
        tried.append({**one.to_json(), **figures})
    return tried


def choose(tried: Sequence[Mapping[str, Any]]) -> int:
    """Index of the best candidate where it clearly beats the first; else 0."""
    best = max(range(len(tried)), key=lambda place: tried[place]["recall_at_1"])
    interval = tried[best]["difference_interval"]
    return best if interval is not None and interval[0] > 0 else 0
