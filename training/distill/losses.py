"""What a small network learns by from a larger one, without labels."""

from __future__ import annotations

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
