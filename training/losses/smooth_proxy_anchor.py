"""Smooth Proxy-Anchor (Roig et al., "Smooth Proxy-Anchor Loss for Noisy Metric Learning", Eqs. 5 and 7)."""

from torch import Tensor

from training.losses.anchor_loss import anchor_loss, confidence_pairs
from training.losses.interface import Batch, ProxyLoss


class SmoothProxyAnchor(ProxyLoss):
    """Proxy-Anchor whose positives and weights come from class confidences; the given labels are not used.

        w_xp = sigmoid(beta (c_xp - lambda))        X_p+ = {x : c_xp > lambda}        X_p- = the rest of the batch
        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X_p+}    w_xp  exp(-alpha (s(x,p) - delta)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x in X_p-} (1-w_xp) exp( alpha (s(x,p) + delta)))

    Both weights are sigmoid(beta |c - lambda|), at least a half, so neither tail of the sigmoid underflows. (The
    gradient printed in the paper's Eq. 6 lacks the weight in its denominators; this is the gradient of Eq. 5.)
    """

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's confidences."""
        if batch.confidences is None:
            raise ValueError("Smooth Proxy-Anchor needs the label confidences of phase 1")
        options = self.options
        pairs = confidence_pairs(batch.confidences, lambda_=options.lambda_, beta=options.beta)
        value, self.positives = anchor_loss(embeddings, self.proxies, pairs, alpha=options.alpha, margins=options.delta)
        return value
