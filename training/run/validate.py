"""Recall@K of heads and baselines on the features of other images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from index.arrays import Floats
from index.evaluation.metrics import DEFAULT_KS, RetrievalScores, score_retrieval


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """Features (N, F) float32 of images that do not train, and their labels (N,) int64.

    `is_gallery` (N,) bool parts them into what is searched and the queries; None: each is asked among all others.
    `ks` are the K of Recall@K. `scenes` (N,) int64 is the same for photos of one scene, which do not find each other;
    None: every photo is a scene of its own.
    """

    features: Floats
    labels: np.ndarray
    is_gallery: np.ndarray | None = None
    ks: Sequence[int] = DEFAULT_KS
    scenes: np.ndarray | None = None

    def score(self, embeddings: Floats) -> RetrievalScores:
        """Retrieval among (N, D) unit rows.

        Raises:
            InputError: no query has another image of its label, outside its scene.
        """
        asked, gallery = self.parts()
        scenes = self.scenes
        return score_retrieval(
            embeddings[asked],
            self.labels[asked],
            gallery=embeddings[gallery],
            gallery_labels=self.labels[gallery],
            gallery_ids=gallery,
            query_ids=asked,
            query_groups=None if scenes is None else scenes[asked],
            gallery_groups=None if scenes is None else scenes[gallery],
            ks=self.ks,
        )

    def can_find(self) -> bool:
        """Whether some query has an image of its label to find, outside its scene."""
        asked, gallery = self.parts()
        scenes = np.arange(len(self.labels)) if self.scenes is None else self.scenes
        shown: dict[int, set[int]] = {}
        for label, scene in zip(self.labels[gallery].tolist(), scenes[gallery].tolist(), strict=True):
            shown.setdefault(label, set()).add(scene)
        queries = zip(self.labels[asked].tolist(), scenes[asked].tolist(), strict=True)
        return any(shown.get(label, set()) - {scene} for label, scene in queries)

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers (int64, sorted) of the queries, and of what they search."""
        rows = np.arange(len(self.labels), dtype=np.int64)
        return (rows, rows) if self.is_gallery is None else (rows[~self.is_gallery], rows[self.is_gallery])


@torch.inference_mode()
def embed_features(head: nn.Module, features: Floats) -> Floats:
    """(N, F) float32 features to (N, D) float32 unit rows, in blocks, on the head's device."""
    tensor = next(iter(head.state_dict().values()), None)
    device = tensor.device if tensor is not None else torch.device("cpu")
    blocks = [head(part.to(device)).cpu().numpy() for part in torch.from_numpy(features).split(8192)]
    return np.concatenate(blocks)
