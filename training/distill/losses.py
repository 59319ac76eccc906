"""What a small network learns by from a larger one, and from copies of pictures, without labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def match_neighbours(embeddings: Tensor, targets: Tensor, bank: Tensor, *, temperature: float) -> Tensor:
    """() mean over images of how unlike their neighbours are to the teacher's (Koohpayegani et al. 2020, CompRess).

    With p the softmax over the bank of target · bank / temperature, and q that of embedding · bank / temperature, it
    is the Kullback-Leibler divergence sum p log(p / q): 0 where the embedding is its target.

    Args:
        embeddings: (B, D) unit rows of the student.
        targets: (B, D) unit rows of the teacher, of the same images.
        bank: (M, D) unit rows of the teacher, of other images.
    """
    expected = functional.log_softmax(targets @ bank.T / temperature, dim=1)  # (B, M)
    found = functional.log_softmax(embeddings @ bank.T / temperature, dim=1)
    return functional.kl_div(found, expected, reduction="batchmean", log_target=True)


def regress_embeddings(embeddings: Tensor, targets: Tensor) -> Tensor:
    """() mean over images of 1 - cosine, half the squared distance to the teacher's (Navaneet et al. 2021, SimReg).

    Args:
        embeddings: (B, D) unit rows of the student.
        targets: (B, D) unit rows of the teacher, of the same images.
    """
    return 1 - (embeddings * targets).sum(dim=1).mean()


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
