"""How phase 2 begins: how long it takes, where the head starts, and where the proxies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from training.backbone.feature_sources import CachedSource
from training.head.embedding_heads import EmbeddingHead, WhitenedHead
from training.head.whitening import fit_within_classes
from training.losses.interface import MetricLoss
from training.options.config import EmbeddingConfig
from training.options.losses import LossConfig
from training.run.phases import PhaseContext
from training.run.start import TrainedHead, count_epochs, start_embedding

CLASSES = 3
CONTEXT = PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=None)


def _blobs(count: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, 8) of three classes, their labels, and confidences of which some are 0."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    features = nn.functional.one_hot(labels, 8).float() + 0.4 * torch.randn(count, 8, generator=generator) + 1
    own = torch.rand(count, generator=generator)
    own[::5] = 0
    return features, labels, own


def _start(
    *, start: str = "whitened", method: str = "proxy-nca", rows: Tensor | None = None, **changes: Tensor
) -> tuple[TrainedHead, MetricLoss, torch.optim.Optimizer, int]:
    features, labels, own = _blobs()
    return start_embedding(
        CachedSource(changes.get("features", features)[:, None]), labels, class_count=CLASSES + 1,
        rows=torch.arange(len(labels)) if rows is None else rows, own=own if start == "whitened" else None,
        loss_config=LossConfig(method=method), config=EmbeddingConfig(embedding_dim=2, start=start),
        context=CONTEXT, guidance=None,
    )  # fmt: skip


def test_without_steps_the_epochs_are_those_asked_for_and_whole() -> None:
    assert count_epochs(EmbeddingConfig(epochs=7), 4) == (7, None)


@pytest.mark.parametrize(
    ("steps", "epochs", "last"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (5, 2, 1), (8, 2, 4), (9, 3, 1)]
)
def test_steps_are_whole_epochs_and_a_part_of_the_last(steps: int, epochs: int, last: int) -> None:
    assert count_epochs(EmbeddingConfig(steps=steps), 4) == (epochs, last)


@given(steps=st.integers(1, 500), batches=st.integers(1, 150))
def test_the_epochs_of_any_number_of_steps_add_up_to_them(steps: int, batches: int) -> None:
    epochs, last = count_epochs(EmbeddingConfig(steps=steps), batches)
    assert last is not None
    assert 1 <= last <= batches
    assert (epochs - 1) * batches + last == steps


def test_a_random_start_is_drawn_by_the_seed() -> None:
    head, again = (_start(start="random")[0] for _ in range(2))
    assert isinstance(head, EmbeddingHead)
    assert torch.equal(head.linear.weight, again.linear.weight)


def test_a_whitened_start_is_the_projection_of_the_rows_that_train_weighed_by_confidence() -> None:
    features, labels, own = _blobs()
    rows = torch.tensor([row for row in range(40) if row % 4])
    head = _start(rows=rows)[0]
    expected = fit_within_classes(
        features[rows].numpy(), labels[rows].numpy(), weights=own[rows].numpy(), embedding_dim=2
    )
    assert isinstance(head, WhitenedHead)
    assert torch.equal(head.weight, torch.from_numpy(expected.weight))
    assert torch.equal(head.bias, torch.from_numpy(expected.bias))
    assert head.drift().item() == 0
    assert head.embedding_dim == 2


def test_images_that_do_not_take_part_do_not_move_a_whitened_start() -> None:
    features, _, _ = _blobs()
    rows = torch.tensor([row for row in range(40) if row % 4])
    others = features.clone()
    others[::4] = 1e3 * torch.randn(10, 8)
    (head, loss, *_), (same, same_loss, *_) = _start(rows=rows), _start(rows=rows, features=others)
    assert torch.equal(head.weight, same.weight)
    assert torch.equal(loss.proxies, same_loss.proxies)


@pytest.mark.parametrize("method", ["proxy-nca", "spa", "proxy-anchor", "adaptive-proxy-anchor", "procsim"])
def test_proxies_start_at_the_mean_embedding_of_their_class_weighed_by_confidence(method: str) -> None:
    features, labels, own = _blobs()
    rows = torch.tensor([row for row in range(40) if row % 4])
    head, loss, _, epoch = _start(method=method, rows=rows)
    for label in range(CLASSES):
        total = torch.zeros(2)
        for row in rows.tolist():
            if labels[row] == label:
                total += own[row] * head(features[row][None])[0].detach()
        torch.testing.assert_close(loss.proxies[label].detach(), total / total.norm())
    drawn = _start(start="random", method=method)[1]
    assert loss.proxies[CLASSES].norm() > 0, "a class without images keeps a drawn proxy"
    assert loss.proxies.shape == drawn.proxies.shape
    assert epoch == 1


def test_all_that_is_trained_and_nothing_else_is_in_the_optimizer() -> None:
    head, loss, optimizer, _ = _start()
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in trained] == [id(head.mix), id(loss.proxies)]
    assert [group["lr"] for group in optimizer.param_groups] == [EmbeddingConfig().lr, EmbeddingConfig().proxy_lr]
