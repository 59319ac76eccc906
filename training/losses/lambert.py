"""The principal branch of the Lambert W function, on the device of its argument."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# 1/e as two float64 numbers: near the branch point x + 1/e is all that counts, and one number is not enough
INVERSE_E = 0.36787944117144233
INVERSE_E_REST = -1.2428753672788363e-17
SERIES = (-1.0, 1.0, -1 / 3, 11 / 72, -43 / 540, 769 / 17280, -221 / 8505, 680863 / 43545600, -1963 / 204120)
SERIES_UP_TO = 0.03
STEPS = 4
TINY = 1e-30  # W(x) = x - x² + ...
ROUNDING = 1e-6


@torch.no_grad()
def lambert_w(x: Tensor) -> Tensor:
    """W with W exp(W) = x and W >= -1, for x >= -1/e; a constant to autograd, as the confidences made of it are.

    Around the branch point: the series of W in p = sqrt(2 (e x + 1)) (Corless et al., "On the Lambert W function",
    1996, Eq. 4.22). Elsewhere: the step of Iacono and Boyd ("New approximations to the principal real-valued branch
    of the Lambert W-function", 2017), w <- w (1 + log(x/w)) / (1 + w). That is Newton's on log(w) + w - log(x), so no
    exponential overflows; it converges quadratically, and four steps from these starts are one more than
    float64 needs.

    Args:
        x: any shape, floating. What rounding has put below -1/e counts as -1/e; what lies further below is NaN.

    Returns:
        As x in shape and type; computed in float64.
    """
    wide = x.double()
    above = math.e * (wide + INVERSE_E + INVERSE_E_REST)  # e x + 1
    p = (2 * above.clamp(min=0)).sqrt()
    series = torch.zeros_like(p)
    for coefficient in reversed(SERIES):
        series = series * p + coefficient
    w = torch.where(wide < -0.25, series, _start(wide.clamp(min=-0.25)))
    for _ in range(STEPS):
        w = w / (1 + w) * (1 + torch.log(wide / w))
    w = torch.where(p < SERIES_UP_TO, series, w)
    w = torch.where((wide.abs() < TINY) | wide.isposinf(), wide, w)
    return w.masked_fill(above < -ROUNDING, math.nan).to(x.dtype)


def _start(x: Tensor) -> Tensor:
    """Winitzki's approximation, within some percent of W for x > -0.25."""
    log = torch.log1p(x)
    return log * (1 - torch.log1p(log) / (2 + log))
