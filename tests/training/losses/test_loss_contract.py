"""What the trainer may rely on with any loss: a new entry of the registry must pass all of this."""

from __future__ import annotations

from dataclasses import fields
from inspect import get_annotations

import pytest
import torch
from torch import Tensor

from tests.training.losses.draws import draw, make_loss
from training.losses.interface import Batch, MetricLoss, ProxyLoss
from training.options.losses import LOSSES, option_groups

every_loss = pytest.mark.parametrize("method", LOSSES)
CONSTANT_WEIGHTS = {  # made to say 1 of everything: finite differences would see how they change
    "procsim": {"procsim_lambda": 1e300},
    "superloss": {"superloss_lambda": 1e300, "negative_margin": 3.0},
}
NOT_DIFFERENTIATED = ("circle", "cross-batch-memory")  # weights, and a memory of the batch, without a gradient


def _leaves(loss: MetricLoss, embeddings: Tensor) -> tuple[Tensor, ...]:
    return (embeddings, *loss.parameters())


@every_loss
def test_a_loss_gives_embeddings_and_its_own_parameters_a_finite_gradient(method: str) -> None:
    drawn, loss = draw(1, batch=12, classes=3, width=4), make_loss(method)
    embeddings = drawn.embeddings.float().requires_grad_()
    value = loss(embeddings, drawn.batch)
    value.backward()
    assert isinstance(loss, MetricLoss)
    assert (value.shape, value.dtype) == ((), torch.float32)
    assert embeddings.grad.any()
    assert all(leaf.grad.isfinite().all() for leaf in _leaves(loss, embeddings))


@every_loss
def test_float64_embeddings_have_a_float64_loss(method: str) -> None:
    drawn = draw(2, batch=6, classes=3, width=4)
    assert make_loss(method)(drawn.embeddings, drawn.batch).dtype == torch.float64


@every_loss
def test_gradients_agree_with_finite_differences(method: str) -> None:
    if method in NOT_DIFFERENTIATED:
        pytest.skip("a part of it is a constant that moves with the embeddings")
    drawn = draw(3, batch=6, classes=3, width=4)

    def value(embeddings: Tensor) -> Tensor:
        return make_loss(method, **CONSTANT_WEIGHTS.get(method, {})).double()(embeddings, drawn.batch)

    assert torch.autograd.gradcheck(value, [drawn.embeddings.requires_grad_()])


@every_loss
@pytest.mark.parametrize("labels", [[], [1], [0, 1, 2], [1, 1, 1]])
def test_a_batch_of_none_or_one_or_without_pairs_has_a_finite_loss_and_finite_gradients(
    method: str, labels: list[int]
) -> None:
    drawn, loss = draw(4, batch=len(labels), classes=3, width=4), make_loss(method)
    embeddings = drawn.embeddings.float().requires_grad_()
    confidences = torch.zeros(len(labels), 3)  # nobody is positive for anything
    rows = torch.arange(len(labels))
    value = loss(embeddings, Batch(torch.tensor(labels, dtype=torch.int64), rows, confidences))
    value.backward()
    assert value.shape == ()
    assert value.isfinite()
    if not labels and method != "adaptive-proxy-anchor":  # whose margins cost something by themselves
        assert value.item() == 0
        assert not any(leaf.grad.any() for leaf in loss.parameters())
    assert all(leaf.grad.isfinite().all() for leaf in _leaves(loss, embeddings))


@every_loss
def test_embeddings_on_top_of_each_other_have_finite_gradients(method: str) -> None:
    loss, embeddings = make_loss(method), torch.ones(6, 4).requires_grad_()  # all cosines among them are 1
    if isinstance(loss, ProxyLoss):
        loss.proxies.data[:2] = torch.tensor([[1.0] * 4, [-1.0] * 4])
    labels = torch.arange(6) % 3
    confidences = torch.nn.functional.one_hot(labels, 3).float()
    value = loss(embeddings, Batch(labels=labels, rows=torch.arange(6), confidences=confidences))
    value.backward()
    assert value.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in _leaves(loss, embeddings))


@every_loss
def test_under_bfloat16_autocast_the_loss_is_the_float32_loss_of_the_same_numbers(method: str) -> None:
    drawn, loss = draw(5, batch=16, classes=3, width=4), make_loss(method)
    rounded = drawn.embeddings.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(rounded, drawn.batch)
    inside.backward()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, make_loss(method)(rounded.float(), drawn.batch))
    assert rounded.grad.isfinite().all()
    assert all(parameter.grad.dtype == torch.float32 for parameter in loss.parameters())


@every_loss
def test_the_state_of_a_loss_can_be_carried_to_a_new_one_after_some_steps(method: str) -> None:
    first, second = make_loss(method), make_loss(method, seed=1)
    for seed in (6, 7):
        drawn = draw(seed, batch=12, classes=3, width=4)
        first(drawn.embeddings.float(), drawn.batch)
    assert all(isinstance(value, Tensor) for value in first.state_dict().values()), "as checkpoints want it"
    second.load_state_dict(first.state_dict())
    drawn = draw(8, batch=12, classes=3, width=4)
    embeddings = drawn.embeddings.float()
    assert torch.equal(first(embeddings, drawn.batch), second(embeddings, drawn.batch))


@every_loss
def test_the_generator_decides_what_a_new_loss_begins_with_and_the_global_one_stays(method: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (make_loss(method, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    drawn = [name for name, _ in make_loss(method).named_parameters() if name != "free_margins"]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


@every_loss
def test_every_parameter_is_in_one_group_and_proxies_are_there_where_the_entry_says_so(method: str) -> None:
    loss = make_loss(method)
    groups = loss.parameter_groups(proxy_lr=0.02, weight_decay=1e-4)
    listed = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, listed)) == sorted(map(id, loss.parameters()))
    assert bool(listed) == LOSSES[method].has_proxies
    assert all(group["lr"] == 0.02 for group in groups) or method == "procsim"


@every_loss
def test_the_options_of_an_entry_have_defaults_help_and_one_meaning(method: str) -> None:
    for field in fields(LOSSES[method].options()):
        assert field.metadata["help"]
    declared = [name for kind in option_groups() for name in get_annotations(kind)]
    assert len(declared) == len(set(declared)), "an option is declared by one class, and shared by inheriting it"
