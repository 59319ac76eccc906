"""Copy-detection head, trained on features of images and of their edited copies (SSCD)."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from index.arrays import Floats, Ids, normalise_rows
from index.errors import RunError
from index.progress import Progress, no_progress
from index.vectors.exact import search
from training.backbone.weights_files import seeded

HIDDEN = 1024  # units
_DROPOUT = 0.3  # of features and units in training; without it the head learns its images by heart
_TOGETHER = 4  # similar images placed together in a batch
_IMAGES = 128  # of a batch, two views each
_LR, _DECAY = 1e-3, 0.05
_TEMPERATURE, _SPREAD = 0.05, 1.0
STEPS = 3000
_NEAR = 16  # nearest images known of each


class CopyHead(nn.Module):
    """(..., F) features to (..., D) unit rows: standardised, one hidden layer."""

    centre: Tensor
    scale: Tensor

    def __init__(
        self, feature_dim: int, *, copy_dim: int, hidden: int = HIDDEN, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(feature_dim))
        self.register_buffer("scale", torch.ones(feature_dim))
        self.hidden, self.last = nn.Linear(feature_dim, hidden), nn.Linear(hidden, copy_dim)
        self.dropout = nn.Dropout(_DROPOUT)
        for layer in (self.hidden, self.last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)

    @property
    def copy_dim(self) -> int:
        """D."""
        return self.last.out_features

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Set centre and scale so that (N, F) features get mean 0 and deviation 1; constant ones become 0."""
        deviation = features.std(dim=0)
        self.centre.copy_(features.mean(dim=0))
        self.scale.copy_(torch.where(deviation > 0, 1 / deviation, 0))

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.hidden(self.dropout((features - self.centre) * self.scale)).relu()
        return nn.functional.normalize(self.last(self.dropout(hidden)), dim=-1)


def order_alike(alike: Ids, generator: np.random.Generator, *, together: int) -> Ids:
    """(n,) int64 order of n images, in groups of a random image and its nearest ones that are still free.

    `alike` (n, k) are the nearest other images of each, the nearest first; negative for none.
    """
    free, groups = np.ones(len(alike), dtype=bool), []
    for first in generator.permutation(len(alike)).tolist():
        if free[first]:
            free[first] = False
            others = alike[first][alike[first] >= 0]
            group = [first, *others[free[others]][: together - 1].tolist()]
            free[group] = False
            groups.append(group)
    return np.array(
        [one for group in generator.permutation(len(groups)).tolist() for one in groups[group]], dtype=np.int64
    )


def contrast_copies(embeddings: Tensor, images: Tensor, *, temperature: float) -> Tensor:
    """() mean over pairs of copies of -log(exp(s_ij / t) / sum of exp(s_ik / t) over k != i) (SSCD, InfoNCE).

    `images` (B,) int64 are the same for copies of an image. Without any copies the loss is 0.
    """
    alike = embeddings @ embeddings.T / temperature  # (B, B)
    itself = torch.eye(len(images), dtype=torch.bool, device=images.device)
    copies = (images[:, None] == images[None]) & ~itself
    shares = functional.log_softmax(alike.masked_fill(itself, -torch.inf), dim=1)
    return -shares[copies].sum() / copies.sum().clamp(min=1)


def spread_images(embeddings: Tensor, images: Tensor) -> Tensor:
    """() mean over images of -log of the distance to the nearest other image (SSCD's entropy term, KoLeo).

    It spreads unrelated images evenly, so that one threshold fits all.

    `images` (B,) int64 are the same for copies of an image. With one image alone the loss is 0.
    """
    others = images[:, None] != images[None]
    if not others.any():
        return embeddings.sum() * 0
    alike = (embeddings @ embeddings.T).masked_fill(~others, -torch.inf)
    nearest = alike.detach().argmax(dim=1)
    gaps = (embeddings - embeddings[nearest]).square().sum(dim=1)
    return -(gaps + torch.finfo(gaps.dtype).eps).sqrt().log().mean()


def fit_copy_head(
    views: Floats, groups: Ids, *, copy_dim: int, seed: int, steps: int = STEPS, progress: Progress = no_progress
) -> CopyHead:
    """Train a head on two views of every image against other images; returned in eval mode, on the CPU.

    `views` (N, V, F) are features of each image and of one or more edited copies; `groups` (N,) int64 are the same for
    copies of one image.
    """
    generator, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    features, images = torch.from_numpy(views), torch.from_numpy(groups)
    count, kept = views.shape[:2]
    head = CopyHead(views.shape[2], copy_dim=copy_dim, generator=generator)
    head.standardise(features.flatten(0, 1))
    optimizer = torch.optim.AdamW(head.parameters(), lr=_LR, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    unit = normalise_rows(views[:, 0])
    alike = search(unit, unit, k=min(_NEAR, count - 1), own=np.arange(count)).rows
    order = torch.empty(0, dtype=torch.int64)
    with seeded(seed):  # for dropout, which knows torch's own generator only
        for step in range(steps):
            if len(order) < min(_IMAGES, count):
                order = torch.from_numpy(order_alike(alike, random, together=_TOGETHER))
            rows, order = order[:_IMAGES], order[_IMAGES:]
            first = torch.randint(kept, (len(rows),), generator=generator)
            second = (first + torch.randint(1, kept, (len(rows),), generator=generator)) % kept  # another view
            embedded, shown = (head(torch.cat([features[rows, first], features[rows, second]])), images[rows].repeat(2))
            loss = contrast_copies(embedded, shown, temperature=_TEMPERATURE)
            loss = loss + _SPREAD * spread_images(embedded, shown)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress(step + 1, steps)
    if not torch.isfinite(loss):
        raise RunError("the training of the output `copy` diverged; leave out --copy-head, or take another backbone")
    return head.eval().requires_grad_(False)
