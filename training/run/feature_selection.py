"""Feature selection: which view and pooling suit these images, tried on a sample before all features are extracted.

Every candidate is evaluated without training: each photo of the sample searches the others by half-whitened PCA.
"""

from __future__ import annotations

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
from training.confidence.same_pictures import find_duplicates
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
    """A view and a pooling of a backbone, and the width F of the features that they give."""

    view: str
    pooling: str
    feature_dim: int

    def to_json(self) -> dict[str, Any]:
        """As it stands in the run and in its report, with the passes of the backbone that an image costs."""
        return {**asdict(self), "passes": VIEW_COSTS[self.view]}


def list_candidates(network: Backbone, sizes: InputConfig, *, embedding_dim: int) -> list[Candidate]:
    """What the options leave open, the usual one first; none narrower than the embedding, unless all are.

    A network without feature maps has its own pooling only.
    """
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
    """Usable images: (N,) int64 labels as training would use them, and (N, F) float32 features by candidate."""

    hashes: Sequence[str]
    labels: Labels
    features: Mapping[Candidate, Floats]


def draw_sample(labels: Sequence[str], *, images: int, seed: int) -> np.ndarray:
    """Sorted int64 rows of about `images` images of whole classes, drawn by the seed; of every class at least two.

    Of classes that are too large to let `LEAST_CLASSES` in, some images are drawn.
    """
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
    """Images that the sample may have of a run that extracts so many views; 0 where they would tell nothing."""
    images = int(SHARE * views / len(_list_views(candidates)))
    return 0 if images < FEWEST_IMAGES else min(images, MOST_IMAGES)


def _list_views(candidates: Sequence[Candidate]) -> list[str]:
    """The views that are extracted: of `both` each."""
    views = {candidate.view for candidate in candidates}
    return [view for view in ("crop", "whole") if view in views or "both" in views]


def read_sample(
    job: Job, records: Sequence[Record], candidates: Sequence[Candidate], *, images: int, network: Backbone
) -> Sample:
    """Draw about so many of the records, label them as training would, and extract every image once a view.

    What cannot be used is left out.
    """
    config, noise = job.config, job.config.data.noise
    usable = keep_usable_classes([record.label for record in records])[0]
    records = [record for record, kept in zip(records, usable, strict=True) if kept]
    labels = [record.label for record in records]
    by_features = noise is not None and noise.kind == "nearest-class"  # of which the sample's alone are known
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
    """The hashes of the images that every view can be had of, by place in `paths`, and their features."""
    sizes, views = job.config.input, _list_views(candidates)
    poolings = {candidate.pooling for candidate in candidates}
    pooling = _EVERY if len(poolings) > 1 else poolings.pop()
    stores: dict[str, FeatureStore] = {}
    found: list[dict[int, str]] = []
    for number, view in enumerate(views):

        def tell(done: int, total: int, before: int = number) -> None:
            job.watcher.on_images("feature_selection", before * total + done, len(views) * total)

        extractor = open_extractor(network, sizes, view=view, pooling=pooling, machine=job.machine)
        stores[view], extracted = extract_together(
            paths, extractor=extractor, views=1, machine=job.machine, progress=tell
        )
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
    """The view and pooling that the run takes: chosen once, and the same for a resume.

    The first candidate is taken where nothing can be tried.

    Args:
        views: of images, of which the run extracts features; the sample costs a tenth of them.
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
            store = open_store(job.machine.cache, extractor, views=1)
            if new := {sha256: row for row, sha256 in enumerate(sample.hashes) if sha256 not in store}:
                store.add(list(new), sample.features[best][list(new.values()), None])
        return {**best.to_json(), **counts, "tried": tried}

    chosen = job.run.keep_json(FEATURE_SELECTION, choose_candidate)
    return next(one for one in candidates if (one.view, one.pooling) == (chosen["view"], chosen["pooling"]))


def try_candidates(sample: Sample, *, embedding_dim: int, seed: int) -> list[dict[str, Any]]:
    """What each candidate finds, in their order, as JSON; empty where there is nothing to find.

    Duplicates, by the features of the first candidate, do not find each other. (Groups are not looked for: what tells
    them of a whole collection misleads in a sample of it.)
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
    """Place of the candidate that finds most, where it finds more than the first by more than chance; else 0."""
    best = max(range(len(tried)), key=lambda place: tried[place]["recall_at_1"])
    interval = tried[best]["difference_interval"]
    return best if interval is not None and interval[0] > 0 else 0
