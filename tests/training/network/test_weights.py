"""Weights beside each other: the average is a loop's, the way between two has both ends exactly."""

from __future__ import annotations

import pytest
import torch

from tests.training.network.test_model import make_model, some_images
from training.network.model import NetworkModel
from training.network.weights import (
    average_weights,
    copy_weights,
    interpolate_weights,
    load_weights,
    using_weights,
)


def _shake(model: NetworkModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.moving().values():
        if tensor.is_floating_point():
            tensor.add_(torch.randn(tensor.shape, generator=generator))


@pytest.fixture
def model() -> NetworkModel:
    return make_model(last=2, follows_batches=True)


def test_the_average_is_that_of_a_loop(model: NetworkModel) -> None:
    average = copy_weights(model)
    expected = {name: tensor.double() for name, tensor in average.items()}
    for step in range(30):
        _shake(model, step)
        average_weights(average, model.moving(), keep=0.7, step=step)
        keep = min(0.7, (step + 1) / (step + 10))
        for name, tensor in model.moving().items():
            counts = not tensor.is_floating_point()
            expected[name] = tensor.double() if counts else keep * expected[name] + (1 - keep) * tensor.double()
    for name, tensor in average.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=1e-5)


def test_the_way_between_two_has_both_ends_exactly(model: NetworkModel) -> None:
    start = copy_weights(model)
    _shake(model, 1)
    trained = copy_weights(model)
    nothing, half, whole = (interpolate_weights(start, trained, share) for share in (0, 0.5, 1))
    for name, tensor in start.items():
        if tensor.is_floating_point():
            assert torch.equal(nothing[name], tensor)
            assert torch.equal(whole[name], trained[name])
            torch.testing.assert_close(half[name], (tensor + trained[name]) / 2)


def test_copies_stay_when_the_model_moves_and_bring_it_back(model: NetworkModel) -> None:
    images = some_images()
    with torch.no_grad():
        before = model(images)
        start = copy_weights(model)
        _shake(model, 2)
        assert not torch.equal(model(images), before)
        with using_weights(model, start):
            assert torch.equal(model(images), before)
        moved = model(images)
        assert not torch.equal(moved, before)
        load_weights(model, start)
        assert torch.equal(model(images), before)


def test_the_models_own_weights_come_back_after_an_error(model: NetworkModel) -> None:
    start = copy_weights(model)
    _shake(model, 3)
    moved = copy_weights(model)
    with pytest.raises(RuntimeError), using_weights(model, start):
        raise RuntimeError
    assert all(torch.equal(tensor, moved[name]) for name, tensor in model.moving().items())
