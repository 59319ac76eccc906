"""Where teacher and student are networks of one shape: every block learns to give what the teacher's gives.

Blocks learn side by side and no gradient passes from one to the next, so that a deep network learns in minutes what it
would take hours to learn from its end (blockwise distillation, Wang et al. 2018, Li et al. 2020). First each gets what
the teacher's block got, then what the student's own blocks before it give, and so learns to mend their errors too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from index.errors import InputError

_LEAST = (
    0.05  # of the mean variance of a block's channels: those that hardly differ count no more than this lets them
)


def list_blocks(network: nn.Module, *, name: str) -> list[nn.Module]:
    """The blocks of a network whose `features` are a sequence, as of torchvision's MobileNets, in their order.

    Raises:
        InputError: it is built in another way.
    """
    features = getattr(network, "features", None)
    if not isinstance(features, nn.Sequential):
        raise InputError(f"--block-epochs: {name} has no sequence of blocks `features`; set them to 0")
    return list(features)


def measure_blocks(
    teacher: Sequence[nn.Module], student: Sequence[nn.Module], images: Tensor, *, own_inputs: bool
) -> Tensor:
    """(L,) mean squared difference of each block's output from the teacher's, by the variance of the channel.

    Args:
        images: (N, 3, H, W), normalised.
        own_inputs: whether a block gets what the student's blocks before it give, in the place of the teacher's.

    Raises:
        InputError: a block's output is of another shape than the teacher's.
    """
    losses = []
    taught = seen = images
    for number, (teaching, learning) in enumerate(zip(teacher, student, strict=True)):
        found = learning(seen if own_inputs else taught)
        with torch.no_grad():
            taught = teaching(taught)
        if found.shape != taught.shape:
            raise InputError(
                f"--block-epochs: block {number} gives {tuple(found.shape[1:])}, the teacher's "
                f"{tuple(taught.shape[1:])}; they go with a student of the teacher's shape: set them to 0"
            )
        variance = taught.var(dim=(0, 2, 3), keepdim=True, correction=0)
        losses.append(((found - taught).square() / (variance + _LEAST * variance.mean())).mean())
        seen = found.detach()
    return torch.stack(losses)
