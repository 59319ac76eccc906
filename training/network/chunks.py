"""Exact gradients of large batches in little memory: the loss sees the whole batch, the network a chunk at a time.

Gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021). It costs
one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn


def backward_in_chunks(
    model: nn.Module, images: Tensor, measure: Callable[[Tensor], Tensor], *, chunk: int | None
) -> Tensor:
    """Add the gradients of `measure(model(images))` to those of all parameters, and give that loss, detached.

    The embedding of an image must not depend on the others of its batch, as with frozen batch norm.

    Args:
        model: maps (B, …) images to (B, D) embeddings.
        images: a batch; the chunks are moved nowhere.
        measure: a loss, a scalar, of all (B, D) embeddings; its own parameters get their gradients too.
        chunk: images that pass the model at a time; None, or B and above, is one pass.
    """
    if chunk is None or chunk >= len(images):
        loss = measure(model(images))
        loss.backward()
        return loss.detach()
    parts = images.split(chunk)
    skip_sharing = getattr(model, "no_sync", nullcontext)  # processes sum their gradients once a step
    with torch.no_grad():
        embeddings = torch.cat([model(part) for part in parts])
    embeddings.requires_grad_(True)
    loss = measure(embeddings)
    loss.backward()
    assert embeddings.grad is not None
    for number, (part, gradient) in enumerate(zip(parts, embeddings.grad.split(chunk), strict=True), 1):
        with nullcontext() if number == len(parts) else skip_sharing():
            model(part).backward(gradient)
    return loss.detach()
