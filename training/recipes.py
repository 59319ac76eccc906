"""Where the defaults of `retrieval train` come from; an option that is given always wins.

Nothing here imports torch, so that `retrieval train --help` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from training.loss_config import SUMS_OVER_SAMPLES, UNTRAINED_METHODS

RECIPES = ("default", "paper")
PAPER: Mapping[str, Any] = MappingProxyType({})  # the config classes' own defaults
# How these were found, and what was tried beside them: docs/recipe.md.
DEFAULT: Mapping[str, Any] = MappingProxyType({
    "method": "proxy-nca",
    "sample_weights": "confidence",
    "confidences": "leave-one-out",
    "nca_scale": 0.0,
    "start": "whitened",
    "hold": 0.06,
    "steps": 300,
    "batch_size": 256,
    "lr": 1e-3,
    "alpha": 4.0,
    "lambda_": 0.3,
})  # fmt: skip


def recipe_values(recipe: str, *, method: str | None = None) -> Mapping[str, Any]:
    """Defaults by option name, where they differ from the config classes' own.

    Args:
        recipe: of `RECIPES`.
        method: the loss, where it is not the recipe's own; what it cannot use is left out.
    """
    if recipe == "paper" or method in UNTRAINED_METHODS:
        return PAPER
    values = dict(DEFAULT)
    if method is not None and method not in SUMS_OVER_SAMPLES:
        del values["sample_weights"]
    return values
