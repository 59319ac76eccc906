"""The sample that a look looks at: which images, with which labels, and their features for every candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from index.arrays import Floats, Labels
from index.progress import Progress
from training.backbone.backbones import Backbone, layout_of
from training.backbone.extract import Extractor, FeatureStore, open_store
from training.backbone.pooling import average_views
from training.data.datasets import Record, keep_usable_classes
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.extraction import extract_together
from training.run.feature_choice import Candidate
from training.run.phases import Watcher
from training.run.prepare import label_images, open_extractor

FEWEST_IMAGES, MOST_IMAGES = 100, 1000  # of whole classes: drawing ends with the class that makes them as many
SHARE = 0.1  # of the views of images that a run extracts: what the sample may cost
LEAST_CLASSES = 100  # where there are so many: larger classes give some of their images
_EVERY = "every"


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
            labels = label_images(labels, features=_read_nothing, config=self._config)
        rows = draw_sample(labels, images=images, seed=self._config.seed)
        hashes, by_view = self._extract([records[row].path for row in rows])
        rows = rows[list(hashes)]
        features = self._combine(by_view)
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

    def _combine(self, by_view: Mapping[str, Tensor]) -> dict[Candidate, Floats]:
        if not by_view:
            return {one: np.empty((0, one.feature_dim), dtype=np.float32) for one in self._candidates}
        return {one: self._select(one, by_view).numpy() for one in self._candidates}

    def _select(self, candidate: Candidate, by_view: Mapping[str, Tensor]) -> Tensor:
        """(N, F) of one candidate."""
        views = self._views if candidate.view == "both" else [candidate.view]
        parts = [by_view[view] for view in views]
        if self._pooling == _EVERY:
            layout = layout_of(self._network, pooling=candidate.pooling, side=self._config.input.crop)
            parts = [layout.select(part, candidate.pooling) for part in parts]
        return parts[0] if candidate.view != "both" else average_views(parts)


def _read_nothing() -> Floats:
    raise AssertionError("this noise reads no features")
