"""The course of a loss in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_HEIGHTS = "▁▂▃▄▅▆▇█"


def draw_curve(losses: Sequence[float], *, width: int) -> str:
    """The losses of all epochs so far, at most `width` characters: the highest as a full block, the lowest as a line.

    Of more epochs than characters, each shows the mean of some that follow each other. Nothing is drawn of one epoch.

    >>> draw_curve([8, 4, 2, 1], width=10)
    '█▄▂▁'
    """
    if len(losses) < 2:
        return ""
    parts = np.array_split(np.asarray(losses, dtype=np.float64), min(width, len(losses)))
    means = np.array([part.mean() for part in parts])
    extent = means.max() - means.min()
    if not extent > 0:
        return _HEIGHTS[0] * len(means)
    heights = np.rint((means - means.min()) / extent * (len(_HEIGHTS) - 1)).astype(int)
    return "".join(_HEIGHTS[height] for height in heights)
