"""Proxy-Anchor (Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. 4)."""

from torch import Tensor

from training.losses.anchor_loss import anchor_loss, label_pairs
from training.losses.interface import Batch, ProxyLoss


class ProxyAnchor(ProxyLoss):
    """Proxy-Anchor with (C, D) proxies: each is pulled to the samples of its label and pushed from the others.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x: y_x = p}  exp(-alpha (s(x,p) - delta)))
          + 1/|P|  sum_{p in P } log(1 + sum_{x: y_x != p} exp( alpha (s(x,p) + delta)))

    P+ are the proxies of the batch's labels. A sample with a wrong label is pushed hardest from its true class.
    """

    def forward(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """() loss of (B, D) embeddings from the batch's labels."""
        options = self.options
        pairs = label_pairs(batch.labels)
        return anchor_loss(embeddings, self.proxies, pairs, alpha=options.alpha, margins=options.delta)[0]
