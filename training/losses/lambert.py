"""The principal branch of the Lambert W function, on the device of its argument."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import lambertw
from torch import Tensor


@torch.no_grad()
def lambert_w(x: Tensor) -> Tensor:
    """W with W exp(W) = x and W >= -1, for x >= -1/e; a constant to autograd, as the confidences made of it are.

    Args:
        x: any shape, floating; what rounding has put below -1/e counts as -1/e.

    Returns:
        As x in shape, type and device; computed in float64 on the CPU.
    """
    wide = x.double().cpu().numpy()
    values = np.where(wide <= -1 / math.e, -1.0, lambertw(wide).real)  # scipy has no number at -1/e itself
    return torch.from_numpy(values).to(x)
