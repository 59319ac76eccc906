"""Batches for the tests of the losses, and a loss's value with its gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from training.losses.interface import Batch, build_loss
from training.options.losses import LossConfig, options_of

_SMALL = {"batch": st.integers(1, 5), "classes": st.integers(1, 4), "width": st.integers(2, 4)}
SIZES = st.fixed_dictionaries({"seed": st.integers(0, 2**31), **_SMALL})


@dataclass(frozen=True, slots=True)
class Draw:
    """Float64 (B, D) embeddings, (C, D) proxies, (B, C) confidences and (C,) margins, and (B,) labels."""

    embeddings: Tensor
    proxies: Tensor
    confidences: Tensor
    margins: Tensor
    labels: Tensor

    @property
    def batch(self) -> Batch:
        return Batch(labels=self.labels, confidences=self.confidences)


def draw(seed: int, *, batch: int, classes: int, width: int) -> Draw:
    """Random numbers, the confidences around lambda as often as anywhere."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    proxies = torch.randn(classes, width, dtype=torch.float64, generator=generator)
    anywhere = torch.rand(batch, classes, dtype=torch.float64, generator=generator)
    near = 0.1 + 0.03 * torch.randn(batch, classes, dtype=torch.float64, generator=generator)
    chosen = torch.rand(batch, classes, generator=generator) < 0.5
    margins = 0.02 + 0.3 * torch.rand(classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (batch,), generator=generator)
    return Draw(embeddings, proxies, torch.where(chosen, near, anywhere).clamp(0, 1), margins, labels)


def value_and_gradients(
    loss: Callable[..., Tensor], inputs: Sequence[Tensor], target: Tensor, **options: object
) -> tuple[Tensor, ...]:
    """The loss of (*inputs, target), then its gradient by every input."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    value = loss(*leaves, target, **options)
    return value.detach(), *torch.autograd.grad(value, leaves)


def assert_is_the_equation(
    found: Sequence[Tensor], *, value: float, gradients: Sequence[Tensor], within: float = 1e-10
) -> None:
    """The result of `value_and_gradients` is that of an oracle."""
    assert abs(float(found[0]) - value) <= within
    for got, wanted in zip(found[1:], gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=within, atol=within)


def loss_config(method: str, **options: Any) -> LossConfig:
    return LossConfig(method, options_of(method)(**options))


def make_loss(method: str, *, classes: int = 3, width: int = 4, seed: int = 0, **options: Any) -> Any:
    """A loss as a run makes it, for (B, width) embeddings of so many classes."""
    generator = torch.Generator().manual_seed(seed)
    return build_loss(loss_config(method, **options), class_count=classes, embedding_dim=width, generator=generator)


def loss_function(method: str) -> Callable[..., Tensor]:
    """A loss of proxies as a function of embeddings, proxies, perhaps margins, and labels or confidences."""

    def compute(embeddings: Tensor, proxies: Tensor, *others: Any, **options: Any) -> Tensor:
        *margins, target = others
        parameters = {"proxies": proxies}
        if margins:
            options["margins"] = "per-class" if margins[0].ndim else "single"
            parameters["free_margins"] = margins[0].expm1().log()
        loss = make_loss(method, classes=max(len(proxies), 1), width=proxies.shape[1], **options)
        given = {"labels": target} if method != "spa" else {"labels": None, "confidences": target}
        batch = Batch(**given)
        return torch.func.functional_call(loss, parameters, (embeddings, batch))

    return compute
