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

_PROBED = 64  # pixels a side
_LEAST = (
    0.05  # of the mean variance of a block's channels: those that hardly differ count no more than this lets them
)


def list_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks of a network whose `features` are a sequence, as of torchvision's MobileNets; none of others."""
    features = getattr(network, "features", None)
    return list(features) if isinstance(features, nn.Sequential) else []


@torch.inference_mode()
def require_one_shape(teacher: nn.Module, student: nn.Module) -> None:
    """See that every block of the student gives what the teacher's gives, in its shape; both are in eval mode.

    Raises:
        InputError: one does not, or there are no blocks.
    """
    taught, own = list_blocks(teacher), list_blocks(student)
    refusal = "blocks learn from a teacher of the student's shape only; without them: --block-epochs 0"
    if not taught or len(taught) != len(own):
        raise InputError(f"the teacher has {len(taught)} blocks, the student {len(own)}: {refusal}")
    one = torch.zeros(1, 3, _PROBED, _PROBED, device=next(teacher.parameters()).device)
    other = one.cpu()
    for number, (teaching, learning) in enumerate(zip(taught, own, strict=True)):
        one, other = teaching(one), learning(other)
        if one.shape != other.shape:
            raise InputError(
                f"block {number} of the teacher gives {tuple(one.shape[1:])}, the student's {tuple(other.shape[1:])}: "
                f"{refusal}"
            )


def measure_blocks(
    teacher: Sequence[nn.Module], student: Sequence[nn.Module], images: Tensor, *, own_inputs: bool
) -> Tensor:
    """(L,) mean squared difference of each block's output from the teacher's, by the variance of the channel.

    Args:
        images: (N, 3, H, W), normalised.
        own_inputs: whether a block gets what the student's blocks before it give, in the place of the teacher's.
    """
    losses = []
    taught = seen = images
    for teaching, learning in zip(teacher, student, strict=True):
        found = learning(seen if own_inputs else taught)
        with torch.no_grad():
            taught = teaching(taught)
        variance = taught.var(dim=(0, 2, 3), keepdim=True, correction=0)
        losses.append(((found - taught).square() / (variance + _LEAST * variance.mean())).mean())
        seen = found.detach()
    return torch.stack(losses)
