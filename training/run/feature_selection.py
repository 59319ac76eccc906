"""Feature selection: which view and pooling suit these images, tried on a sample before all features are extracted.

Every candidate is evaluated without training: each photo of the sample searches the others by half-whitened PCA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.arrays import Floats, Labels
from index.errors import InputError
from index.progress import Progress
from training.backbone.backbones import Backbone, layout_of, with_features
from training.backbone.extract import Extractor, FeatureStore, open_store
from training.backbone.pooling import average_views
from training.confidence.same_pictures import find_duplicates
from training.data.datasets import Record, keep_usable_classes
from training.head.untrained import count_directions, fit_untrained
from training.options.config import AUTO, POOLINGS, VIEW_COSTS, InputConfig, TrainConfig
from training.options.machine import Machine
from training.run.extraction import extract_together
from training.run.phases import Watcher
from training.run.prepare import label_images, open_extractor
from training.run.run_folder import RunFolder
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

    @property
    def passes(self) -> int:
        """Of the backbone, an image."""
        return VIEW_COSTS[self.view]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as they stand in the run and in its report."""
        return {"view": self.view, "pooling": self.pooling, "passes": self.passes, "feature_dim": self.feature_dim}


def list_candidates(network: Backbone, sizes: InputConfig, *, embedding_dim: int) -> list[Candidate]:
    """What the options leave open, the usual one first; none narrower than the embedding, unless all are.

    A network without feature maps has its own pooling only.

    Raises:
        InputError: the network has no feature maps for the pooling that is given.
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

    records: Sequence[Record]
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


class SampleReader:
    """Extracts samples, every image once a view whatever the number of poolings.

    Args:
        network: as of `load_backbone`.
        candidates: what features are for; of a view and pooling each.
    """

    def __init__(
        self,
        network: Backbone,
        candidates: Sequence[Candidate],
        *,
        config: TrainConfig,
        machine: Machine,
        watcher: Watcher,
    ) -> None:
        self._network, self._candidates = network, candidates
        self._config, self._machine, self._watcher = config, machine, watcher
        poolings = {candidate.pooling for candidate in candidates}
        self._pooling = _EVERY if len(poolings) > 1 else poolings.pop()
        views = {candidate.view for candidate in candidates}
        self._views = [view for view in ("crop", "whole") if view in views or "both" in views]

    def afford(self, *, views: int) -> int:
        """Images that the sample may have of a run that extracts so many views; 0 where they would tell nothing."""
        images = int(SHARE * views / len(self._views))
        return 0 if images < FEWEST_IMAGES else min(images, MOST_IMAGES)

    def read(self, records: Sequence[Record], *, images: int) -> Sample:
        """Draw about so many of the records, label as training would, and extract; what cannot be used is left out."""
        usable = keep_usable_classes([record.label for record in records])[0]
        records = [record for record, kept in zip(records, usable, strict=True) if kept]
        labels = [record.label for record in records]
        noise = self._config.data.noise
        by_features = noise is not None and noise.kind == "nearest-class"  # of which the sample's alone are known
        if not by_features:
            labels = label_images(labels, features=lambda: np.empty((0, 0), dtype=np.float32), config=self._config)
        rows = draw_sample(labels, images=images, seed=self._config.seed)
        hashes, by_view = self._extract([records[row].path for row in rows])
        rows = rows[list(hashes)]
        features = {
            one: self._select(one, by_view).numpy()
            if by_view
            else np.empty((0, one.feature_dim), dtype=np.float32)
            for one in self._candidates
        }
        labels = [labels[row] for row in rows]
        if by_features:
            labels = label_images(labels, features=lambda: features[self._candidates[0]], config=self._config)
        numbers = np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64)
        return Sample([records[row] for row in rows], list(hashes.values()), numbers, features)

    def keep(self, sample: Sample, chosen: Candidate) -> None:
        """Put the sample's features of the chosen candidate where a run by torch will look, if they are just those.

        Those of both views are not: there the whole image is made small by the network, not before it.
        """
        if chosen.view == "both" or self._pooling == chosen.pooling:
            return
        store = self._open(chosen.view, chosen.pooling)[1]
        features = sample.features[chosen]
        new = {sha256: row for row, sha256 in enumerate(sample.hashes) if sha256 not in store}
        if new:
            store.add(list(new), features[list(new.values()), None])

    def _open(self, view: str, pooling: str) -> tuple[Extractor, FeatureStore]:
        extractor = open_extractor(
            self._network, self._config.input, view=view, pooling=pooling, machine=self._machine
        )
        return extractor, open_store(self._machine.cache, extractor, views=1)

    def _extract(self, paths: Sequence[Path]) -> tuple[dict[int, str], dict[str, Tensor]]:
        """The hashes of the usable ones by place in `paths`, and by view their (N, P) features."""
        found: list[dict[int, str]] = []
        stores: dict[str, FeatureStore] = {}
        for number, view in enumerate(self._views):
            extractor, stores[view] = self._open(view, self._pooling)
            extracted = extract_together(
                paths, store=stores[view], extractor=extractor, views=1, machine=self._machine,
                progress=self._tell(number),
            )  # fmt: skip
            found.append(dict(zip(extracted.rows.tolist(), extracted.hashes, strict=True)))
        hashes = {row: sha256 for row, sha256 in found[0].items() if all(row in others for others in found)}
        if not hashes:
            return {}, {}
        loaded = {view: store.load(list(hashes.values()))[:, 0] for view, store in stores.items()}
        return hashes, {view: torch.from_numpy(features) for view, features in loaded.items()}

    def _tell(self, number: int) -> Progress:
        """Progress of one view among all."""
        return lambda done, total: self._watcher.on_images("look", number * total + done, len(self._views) * total)

    def _select(self, candidate: Candidate, by_view: Mapping[str, Tensor]) -> Tensor:
        """(N, F) of one candidate."""
        views = self._views if candidate.view == "both" else [candidate.view]
        parts = [by_view[view] for view in views]
        if self._pooling == _EVERY:
            layout = layout_of(self._network, pooling=candidate.pooling, side=self._config.input.crop)
            parts = [layout.select(part, candidate.pooling) for part in parts]
        return parts[0] if candidate.view != "both" else average_views(parts)


def select_features(
    run: RunFolder, records: Sequence[Record], candidates: Sequence[Candidate], *, views: int, network: Backbone,
    config: TrainConfig, machine: Machine, watcher: Watcher,
) -> Candidate:  # fmt: skip
    """The view and pooling that the run takes: chosen once, and the same for a resume.

    The first candidate is taken where nothing can be tried. Features that the run will need are left in the cache.

    Args:
        views: of images, of which the run extracts features; the sample costs a tenth of them.
    """
    chosen = run.read_feature_choice()
    if chosen is None:
        first: dict[str, Any] = {**candidates[0].to_json(), "images": 0, "classes": 0, "tried": []}
        chosen = first
        if len(candidates) > 1:
            reader = SampleReader(network, candidates, config=config, machine=machine, watcher=watcher)
            if images := reader.afford(views=views):
                chosen = first | _try_on_sample(reader, records, images=images, config=config)
            else:
                chosen = first | {"images": len(records)}
        run.write_feature_choice(chosen)
    return next(one for one in candidates if (one.view, one.pooling) == (chosen["view"], chosen["pooling"]))


def _try_on_sample(
    reader: SampleReader, records: Sequence[Record], *, images: int, config: TrainConfig
) -> dict[str, Any]:
    """What was tried on about so many images, and what is taken."""
    sample = reader.read(records, images=images)
    tried = try_candidates(sample, embedding_dim=config.embedding.width, seed=config.seed)
    best = list(sample.features)[choose(tried) if tried else 0]
    reader.keep(sample, best)
    counts = {"images": len(sample.labels), "classes": len(np.unique(sample.labels))}
    return {**best.to_json(), **counts, "tried": tried}


def try_candidates(sample: Sample, *, embedding_dim: int, seed: int) -> list[dict[str, Any]]:
    """What each candidate finds, in their order, as JSON; empty where there is nothing to find.

    Duplicates, by the features of the first candidate, do not find each other. (Scenes are not looked for: what tells
    them of a whole collection misleads in a sample of it.)
    """
    count = len(sample.labels)
    if count < 2 * _IMAGES_A_DIRECTION:
        return []
    usual = next(iter(sample.features.values()))
    copies = find_duplicates(usual, sample.labels, hashes=sample.hashes).groups
    searched = ValidationSet(usual, sample.labels, ks=(1,), scenes=copies)
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
