"""A loss from its name and options; `training.options.losses` lists them all."""

from __future__ import annotations

from importlib import import_module

import torch

from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss
from training.options.losses import LOSSES, LossConfig


def loss_class(method: str) -> type[MetricLoss]:
    """The class that a method's entry names.

    Raises:
        MissingDependencyError: the package that has it is not installed.
    """
    module, _, name = LOSSES[method].place.partition(":")
    kind: type[MetricLoss] = getattr(import_module(f"training.losses.{module}"), name)
    kind.require_package(method)
    return kind


def build_loss(
    config: LossConfig,
    *,
    class_count: int,
    embedding_dim: int,
    generator: torch.Generator,
    guidance: Guidance | None = None,
) -> MetricLoss:
    """The loss that the config names, new; arguments and errors as of `MetricLoss` and `loss_class`."""
    return loss_class(config.method)(
        config.options,
        class_count=class_count,
        embedding_dim=embedding_dim,
        generator=generator,
        guidance=guidance,
    )
