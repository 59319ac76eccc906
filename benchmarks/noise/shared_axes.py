"""Principal axes of features, computed once for the many trainings of a worker that ask for them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from index.arrays import Floats
from training.head.projection import PrincipalAxes, count_directions, fit_principal_axes
from training.head.whitening import DIRECTIONS

_KEPT = 8
_SAMPLED_ROWS = 64
_USERS = ("training.head.whitening", "training.head.untrained")


_axes: OrderedDict[Any, PrincipalAxes] = OrderedDict()


@contextmanager
def sharing_axes() -> Iterator[None]:
    """Within, PCA and whitening of the same features ask for the same axes: those of wide features take seconds."""
    with ExitStack() as stack:
        for user in _USERS:
            stack.enter_context(patch(f"{user}.fit_principal_axes", _fit_once))
        yield


def _fit_once(features: Floats, *, embedding_dim: int) -> PrincipalAxes:
    spanned = count_directions(features)
    if embedding_dim > spanned:
        return fit_principal_axes(features, embedding_dim=embedding_dim)  # which says what is wrong
    width = max(embedding_dim, min(DIRECTIONS, spanned))
    key = (_describe(features), width)
    if key not in _axes:
        _axes[key] = fit_principal_axes(features, embedding_dim=width)
    _axes.move_to_end(key)
    if len(_axes) > _KEPT:
        _axes.popitem(last=False)
    axes = _axes[key]
    return replace(axes, variances=axes.variances[:embedding_dim], axes=axes.axes[:embedding_dim])


def _describe(features: Floats) -> tuple[tuple[int, ...], float, str]:
    """What tells features from others: their size, their sum and some of their rows."""
    rows = np.ascontiguousarray(features[:: max(1, len(features) // _SAMPLED_ROWS)])
    return features.shape, float(features.sum(dtype=np.float64)), hashlib.blake2b(rows).hexdigest()
