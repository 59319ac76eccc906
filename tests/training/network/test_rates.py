"""The optimizer of the network stage: who learns how fast, when, and what pulls it back."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.training.losses.draws import make_loss
from tests.training.network.test_model import make_model, some_images
from training.options.network import NetworkConfig
from training.run.network.fit import StartPenalty, make_optimizer, rate_share, set_rates

CONFIG = NetworkConfig(unfreeze="last-3", network_lr=1e-3, network_decay=0.5, network_head_lr=0.02)


def _optimizer(model, loss) -> torch.optim.AdamW:
    return make_optimizer(model, loss, CONFIG, proxy_lr=0.1, weight_decay=1e-4)


def test_every_moving_parameter_has_one_rate_by_its_block() -> None:
    model, loss = make_model(last=3), make_loss("proxy-anchor", width=4)
    optimizer = _optimizer(model, loss)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    moving = [p for p in model.parameters() if p.requires_grad]
    assert sorted(map(id, listed)) == sorted(map(id, [*moving, *loss.parameters()]))
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4, 0.02, 0.1])
    last = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert last == {id(p) for n, p in model.named_parameters() if n.startswith("backbone.classifier.0.")}
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == [0, 0, 0, 1e-4, 1e-4], "the network is held near its start instead"


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_rates_rise_over_a_tenth_then_fall_and_never_reach_nothing(steps: int) -> None:
    shares = [rate_share(step, steps) for step in range(steps)]
    top = max(1, round(0.1 * steps)) - 1
    assert shares[top] == max(shares) == 1
    assert all(a < b for a, b in pairwise(shares[: top + 1]))
    assert all(a > b for a, b in pairwise(shares[top:]))
    assert min(shares) > 0


def test_the_rates_of_a_step_keep_their_proportions() -> None:
    optimizer = _optimizer(make_model(last=3), make_loss("proxy-anchor", width=4))
    set_rates(optimizer, step=40, steps=100)
    share = rate_share(40, 100)
    expected = [share * rate for rate in (1e-3, 5e-4, 2.5e-4, 0.02, 0.1)]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)


def test_the_penalty_adds_the_gradient_of_the_squared_distance() -> None:
    model = make_model(last=2)
    parameters = [p for level in model.levels for p in level]
    start = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    loss = model(some_images())[:, 0].sum()
    distance = sum((p - s).square().sum() for p, s in zip(parameters, start, strict=True))
    expected = torch.autograd.grad(loss + 0.3 * distance, parameters, retain_graph=True)
    loss.backward()
    StartPenalty(parameters, weight=0.3, start=start).add_gradients()
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)
