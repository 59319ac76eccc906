"""In which order pictures teach: those that are alike together, so that copies are told from them."""

from __future__ import annotations

import numpy as np

from index.arrays import Floats, Ids
from index.vectors.exact import search

_NEAR = 16  # pictures that are known to be most alike to each


def find_alike(embeddings: Floats) -> Ids:
    """(n, k) int64, of each of (n, D) unit rows the others that are most alike to it, for `order_alike`."""
    count = len(embeddings)
    return search(embeddings, embeddings, k=min(_NEAR, count - 1), own=np.arange(count)).rows


def order_alike(alike: Ids, generator: np.random.Generator, *, together: int) -> Ids:
    """(n,) int64, each of n pictures once, in groups: one at random and those most alike to it that are still free.

    Args:
        alike: (n, k) int64, of each the others that are most alike to it, the nearest first; negative for none.
        together: pictures of a group, as far as there are free ones.
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
