"""Multi-Similarity (Wang et al., "Multi-Similarity Loss with General Pair Weighting", CVPR 2019)."""

import math

import torch
from torch import Tensor

from training.losses.interface import Batch, MetricLoss, average_losses, cosine_to_proxies, log1p_sum_exp
from training.options.losses import MultiSimilarityOptions


def multi_similarity_losses(embeddings: Tensor, labels: Tensor, options: MultiSimilarityOptions) -> Tensor:
    """Pull of each sample's mined positives and push of its mined negatives, in the batch.

        l_i = 1/alpha log(1 + sum_{j in P_i} exp(-alpha (S_ij - base)))
            + 1/beta  log(1 + sum_{j in N_i} exp( beta  (S_ij - base)))         S_ij = cosine(x_i, x_j)
        P_i = {j != i : y_j  = y_i and S_ij - epsilon < max over the negatives k of S_ik}
        N_i = {j      : y_j != y_i and S_ij + epsilon > min over the positives k of S_ik}

    The maximum of nothing is minus infinity and the minimum of nothing infinity, as in pytorch-metric-learning: a
    sample without positives or without negatives costs exactly 0 and has no gradient of its own. Only (i, i) is left
    out of the positives; the authors' code leaves out every pair above a cosine of 1 - 1e-5. Mining carries no
    gradient.

    Args:
        embeddings: (B, D), any norm.
        labels: (B,) int64.
        options: alpha and beta (40 in the authors' code), base (the paper's lambda) and epsilon.
    """
    cosines = cosine_to_proxies(embeddings, embeddings)  # (B, B): every sample is every other's proxy
    positive, negative = mine_pairs(cosines.detach(), labels, epsilon=options.ms_epsilon)
    above = cosines - options.ms_base
    pull = log1p_sum_exp(-options.ms_alpha * above, positive, dim=1) / options.ms_alpha
    push = log1p_sum_exp(options.ms_beta * above, negative, dim=1) / options.ms_beta
    return pull + push


def mine_pairs(cosines: Tensor, labels: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """(B, B) bool each: the positives P_i and the negatives N_i of sample i, in row i.

    If any positive of a sample is kept, so are its least similar positive and its most similar negative: one set is
    empty only with the other.
    """
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    hardest_negative = _largest(cosines, ~same)
    hardest_positive = -_largest(-cosines, positive)
    return (positive & (cosines - epsilon < hardest_negative), ~same & (cosines + epsilon > hardest_positive))


def _largest(values: Tensor, members: Tensor) -> Tensor:
    """(B, 1) largest of the members of each row; minus infinity for an empty row."""
    nothing = values.new_full((len(values), 1), -math.inf)
    return torch.cat([nothing, values.masked_fill(~members, -math.inf)], dim=1).amax(dim=1, keepdim=True)


class MultiSimilarity(MetricLoss):
    """Multi-Similarity over the pairs of a batch; it has no parameters."""

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() mean of `multi_similarity_losses` over the whole batch; 0 for an empty one."""
        return average_losses(multi_similarity_losses(embeddings, batch.labels, self.options))
