"""Proxy-NCA (Movshovitz-Attias et al., ICCV 2017), with the probability of Proxy-NCA++ (Teh et al., ECCV 2020)."""

import math

from torch import Tensor, nn

from training.losses.interface import Batch, ProxyLoss, average_losses, cosine_to_proxies, read_columns


def proxy_nca_losses(embeddings: Tensor, proxies: Tensor, targets: Tensor, *, scale: float = 8.0) -> Tensor:
    """(B,) negative log-probability of each sample's own proxy among all proxies, on the unit sphere.

        d(x,p) = || x/|x| - p/|p| ||^2
        l_i    = -log( exp(-scale d(x_i,p_{y_i})) / sum_{p in P} exp(-scale d(x_i,p)) )

    The 2017 paper leaves the sample's own proxy out of the denominator. It stays in here, as in Proxy-NCA++ and
    pytorch-metric-learning: l_i is then never below 0, and comparable between samples.

    Args:
        embeddings, proxies: (B, D) and (C, D), any norm.
        targets: (B,) int64 labels in 0..C-1, or (B, C) probabilities q: then the mean over q, sum_k q_ik l_ik.
        scale: of the squared distances, which lie in 0..4.
    """
    # d = 2 - 2 cosine, and the 2 is in every exponent of a sample: the softmax does not see it.
    logits = 2 * scale * cosine_to_proxies(embeddings, proxies)
    return nn.functional.cross_entropy(logits, targets, reduction="none")


def scale_for(class_count: int) -> float:
    """0.8 sqrt(C), at most 32: more classes need a sharper softmax (docs/recipe.md; tried with 9 to 100 classes)."""
    return min(32.0, 0.8 * math.sqrt(class_count))


class ProxyNca(ProxyLoss):
    """Proxy-NCA with (C, D) proxies of its own."""

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() mean of `proxy_nca_losses` over the batch; 0 for an empty one."""
        scale = self.options.nca_scale or scale_for(len(self.proxies))
        targets = batch.labels
        if self.options.targets == "posteriors":
            if batch.confidences is None:
                raise ValueError("--targets posteriors needs the label confidences of phase 1")
            targets = read_columns(batch.confidences, 0, len(self.proxies)).to(embeddings)
        return average_losses(proxy_nca_losses(embeddings, self.proxies, targets, scale=scale))
