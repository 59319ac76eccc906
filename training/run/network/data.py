"""What the network stage trains on and is judged by: decoded images, labels, and what is held out of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from index.arrays import Floats, Ids, Labels
from index.images.preprocess import Pixels
from training.run.distributed import Team
from training.run.network.inputs import NetworkInputs
from training.run.trial import TrialData
from training.run.trial_splits import Split
from training.run.validate import embed_features

GALLERY = (
    10  # images of a class that those held out of it search: enough to compare weights, at a third of the cost
)
NO_PIXELS = np.zeros((0, 0, 0, 3), dtype=np.uint8)  # before they are decoded
Embed = Callable[[np.ndarray], Floats]
"""(n,) row numbers to (n, D) float32 unit rows."""


@dataclass(frozen=True, slots=True)
class NetworkData:
    """The images of a run, for the network stage.

    Attributes:
        pixels: (N, R, R, 3) uint8.
        labels: (N,) int64 used labels in 0..C-1.
        class_count: C.
        split: what trains and what is held out.
        groups: (N,) int64, the same for duplicates, which must not vouch for each other; None: there are none.
        scenes: (N,) int64, the same for photos of one scene; None: every photo is a scene of its own.
    """

    pixels: Pixels
    labels: Labels
    class_count: int
    split: Split
    groups: Ids | None = None
    scenes: Ids | None = None

    def score(self, embed: Embed) -> dict[str, float]:
        """MAP@R by part, by the labels as they are: `unseen` classes among themselves, `seen` ones in a gallery.

        Parts in which nothing can be found are left out. All images of a class count in it, not the nearest alone: of
        few images, and with wrong labels, it tells better weights where Recall@1 does not.
        """
        searched = Split(self._choose_gallery(), self.split.unseen, self.split.seen)
        rows = self.searched_rows()
        embedded = embed(rows)
        embeddings = np.zeros((len(self.labels), embedded.shape[1]), dtype=np.float32)
        embeddings[rows] = embedded
        parts = TrialData(embeddings, self.labels, scenes=self.scenes).searched(searched)
        return {part: float(found.score(found.features).average_precision.mean()) for part, found in parts.items()}

    def score_features(self, head: nn.Module, features: Floats, rows: Ids) -> dict[str, float]:
        """`score` by (n, F) features of the images `rows`, rising, those of `searched_rows` among them."""
        return self.score(lambda wanted: embed_features(head, features[np.searchsorted(rows, wanted)]))

    def searched_rows(self) -> Ids:
        """The images that `score` embeds, rising."""
        return np.unique(np.concatenate([self._choose_gallery(), self.split.unseen, self.split.seen]))

    def _choose_gallery(self) -> Ids:
        """Of every class that trains and has images held out, the first ones that train."""
        train = self.split.train
        if not len(self.split.seen):
            return train[:0]
        labels = self.labels[train]
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels, minlength=self.class_count)
        ranks = np.empty(len(train), dtype=np.int64)
        ranks[order] = np.arange(len(train)) - np.repeat(sizes.cumsum() - sizes, sizes)
        wanted = np.isin(labels, np.unique(self.labels[self.split.seen]))
        return train[(ranks < GALLERY) & wanted]


def mean_score(parts: dict[str, float]) -> float:
    """What decides: the mean over what could be searched."""
    return float(np.mean(list(parts.values())))


def read_together(inputs: NetworkInputs, rows: Ids, team: Team) -> Tensor:
    """(n, F) float32 features of the images `rows`, by the backbone as it is now, on rank 0; each rank reads a part."""
    own = rows[team.part_of(len(rows))]
    read = inputs.read_features(own if len(own) else rows[:1])[: len(own)]
    return team.collect_rows(read, len(rows))
