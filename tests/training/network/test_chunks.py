"""A batch in chunks has the gradients of the whole batch, for losses that couple all of its images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from index.errors import InputError
from tests.training.network.test_model import make_model, some_images
from training.losses.interface import Batch
from training.losses.make_loss import build_loss
from training.options.losses import LossConfig
from training.options.network import NetworkConfig
from training.run.network.fit import backward_in_chunks

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class _Rows(nn.Module):
    """A tiny float64 network, each row by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(draw(*parameter.shape, seed=number))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.layers(rows))


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize("method", ["proxy-anchor", "multi-similarity", "proxy-nca"])
def test_gradients_are_those_of_the_whole_batch(method: str, chunk: int) -> None:
    rows, model = draw(7, 5, seed=9), _Rows()
    loss = build_loss(
        LossConfig(method),
        class_count=3,
        embedding_dim=4,
        generator=torch.Generator().manual_seed(1),
        guidance=None,
    ).double()
    batch = Batch(LABELS, torch.arange(7), None, None)
    tensors = [*model.parameters(), *loss.parameters()]
    whole_loss = loss(model(rows), batch)
    expected = torch.autograd.grad(whole_loss, tensors, allow_unused=True)
    found_loss = backward_in_chunks(model, rows, lambda embeddings: loss(embeddings, batch), chunk=chunk)
    torch.testing.assert_close(found_loss, whole_loss.detach(), rtol=1e-12, atol=0)
    for tensor, gradient in zip(tensors, expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(tensor.grad, gradient, rtol=1e-9, atol=1e-12)
    assert any(gradient is not None and gradient.abs().max() > 1e-6 for gradient in expected)


def test_the_largest_chunk_passes_whole_and_no_image_passes_more_than_once_with_gradients() -> None:
    seen: list[tuple[int, bool]] = []

    class Watched(_Rows):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append((len(rows), torch.is_grad_enabled()))
            return super().forward(rows)

    rows = draw(7, 5, seed=9)
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=None)
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=7)
    assert seen == [(7, True), (7, True)]
    seen.clear()
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=3)
    assert seen == [(3, False), (3, False), (1, False), (3, True), (3, True), (1, True)]


def test_a_network_trains_in_chunks_as_it_does_at_once() -> None:
    gradients = []
    for chunk in (None, 3):
        model = make_model(last=2)
        target = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
        backward_in_chunks(
            model, some_images(7), lambda embeddings, t=target: (embeddings @ embeddings.T @ t).square().sum(),
            chunk=chunk,
        )  # fmt: skip
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-4)


def test_chunks_and_statistics_of_batches_do_not_go_together() -> None:
    with pytest.raises(InputError, match="--network-chunk needs --network-batch-norm frozen"):
        NetworkConfig(unfreeze="all", network_chunk=8, network_batch_norm="train")
