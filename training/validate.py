"""Recall@K of heads and baselines on the features of other images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from index.exact import Floats
from index.metrics import DEFAULT_KS, RetrievalScores, score_retrieval
from training.projection import fit_principal_axes, normalise_rows


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """Features (N, F) float32 of images that do not train, and their labels (N,) int64."""

    features: Floats
    labels: np.ndarray

    def score(self, embeddings: Floats, *, ks: Sequence[int] = DEFAULT_KS) -> RetrievalScores:
        """Leave-one-out retrieval among (N, D) unit rows.

        Raises:
            InputError: no label has two images.
        """
        ids = np.arange(len(embeddings), dtype=np.int64)
        return score_retrieval(
            embeddings,
            self.labels,
            gallery=embeddings,
            gallery_labels=self.labels,
            gallery_ids=ids,
            query_ids=ids,
            ks=ks,
        )


@torch.inference_mode()
def embed_features(head: nn.Module, features: Floats) -> Floats:
    """(N, F) float32 features to (N, D) float32 unit rows, in blocks, on the head's device."""
    tensor = next(iter(head.state_dict().values()), None)
    device = tensor.device if tensor is not None else torch.device("cpu")
    blocks = [head(part.to(device)).cpu().numpy() for part in torch.from_numpy(features).split(8192)]
    return np.concatenate(blocks)


@dataclass(frozen=True, slots=True)
class Baseline:
    """An untrained embedding's scores, and its width."""

    scores: RetrievalScores
    embedding_dim: int


def score_baselines(
    validation: ValidationSet, *, train_features: Floats, embedding_dim: int
) -> dict[str, Baseline]:
    """The untrained baselines on the validation set: raw at full width, PCA and whitened PCA at `embedding_dim`.

    Both projections are fitted on the training images, without labels. Where those span fewer directions than
    `embedding_dim`, the projections are as wide as they can be.
    """
    width = min(embedding_dim, train_features.shape[1], len(train_features) - 1)
    axes = fit_principal_axes(train_features, embedding_dim=width)
    embeddings = {
        "raw": normalise_rows(validation.features),
        "pca": axes.projection(whiten=False).apply(validation.features),
        "pca-whitened": axes.projection(whiten=True).apply(validation.features),
    }
    return {name: Baseline(validation.score(vectors), vectors.shape[1]) for name, vectors in embeddings.items()}
