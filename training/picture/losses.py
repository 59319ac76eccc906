"""What the output `picture` learns by: copies of a picture are near, other pictures are not, however alike they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def contrast_copies(embeddings: Tensor, pictures: Tensor, *, temperature: float) -> Tensor:
    """() mean over pairs of copies of -log(exp(s_ij / t) / sum of exp(s_ik / t) over k != i) (SSCD, InfoNCE).

    Args:
        embeddings: (B, D) unit rows.
        pictures: (B,) int64, the same for copies of a picture. Without any copies the loss is 0.
    """
    alike = embeddings @ embeddings.T / temperature  # (B, B)
    itself = torch.eye(len(pictures), dtype=torch.bool, device=pictures.device)
    copies = (pictures[:, None] == pictures[None]) & ~itself
    shares = functional.log_softmax(alike.masked_fill(itself, -torch.inf), dim=1)
    return -shares[copies].sum() / copies.sum().clamp(min=1)


def spread_pictures(embeddings: Tensor, pictures: Tensor) -> Tensor:
    """() mean over images of -log of the distance to the nearest other picture (SSCD's entropy term, KoLeo).

    It drives unrelated pictures apart everywhere alike, so that one distance means the same for all.

    Args:
        embeddings: (B, D) unit rows.
        pictures: (B,) int64, the same for copies of a picture. With one picture alone the loss is 0.
    """
    others = pictures[:, None] != pictures[None]
    if not others.any():
        return embeddings.sum() * 0
    alike = (embeddings @ embeddings.T).masked_fill(~others, -torch.inf)
    nearest = alike.detach().argmax(dim=1)
    gaps = (embeddings - embeddings[nearest]).square().sum(dim=1)
    return -(gaps + torch.finfo(gaps.dtype).eps).sqrt().log().mean()
