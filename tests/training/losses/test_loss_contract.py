"""What the trainer may rely on with any loss: a new entry of the registry must pass all of this."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.training.losses.draws import draw, make_loss
from training.losses.interface import Batch, MetricLoss, average_losses
from training.options.losses import LOSSES

every_loss = pytest.mark.parametrize("method", LOSSES)
WITH_PROXIES = ("spa", "proxy-anchor", "adaptive-proxy-anchor", "proxy-nca")


def _has_finite_gradients(loss: MetricLoss, embeddings: Tensor) -> bool:
    return all(bool(leaf.grad.isfinite().all()) for leaf in (embeddings, *loss.parameters()))


@every_loss
def test_a_loss_gives_embeddings_and_its_own_parameters_a_finite_gradient(method: str) -> None:
    drawn, loss = draw(1, batch=12, classes=3, width=4), make_loss(method)
    assert make_loss(method)(drawn.embeddings, drawn.batch).dtype == torch.float64
    embeddings = drawn.embeddings.float().requires_grad_()
    value = loss(embeddings, drawn.batch)
    value.backward()
    assert (value.shape, value.dtype) == ((), torch.float32)
    assert embeddings.grad.any()
    assert _has_finite_gradients(loss, embeddings)


@every_loss
def test_gradients_agree_with_finite_differences(method: str) -> None:
    drawn = draw(3, batch=6, classes=3, width=4)

    def value(embeddings: Tensor) -> Tensor:
        return make_loss(method).double()(embeddings, drawn.batch)

    assert torch.autograd.gradcheck(value, [drawn.embeddings.requires_grad_()])


@every_loss
@pytest.mark.parametrize("labels", [[], [1], [0, 1, 2], [1, 1, 1]])
def test_a_batch_of_none_or_one_or_without_pairs_has_a_finite_loss_and_finite_gradients(method, labels) -> None:
    drawn, loss = draw(4, batch=len(labels), classes=3, width=4), make_loss(method)
    embeddings = drawn.embeddings.float().requires_grad_()
    confidences = torch.zeros(len(labels), 3)  # nobody is positive for anything
    value = loss(embeddings, Batch(torch.tensor(labels, dtype=torch.int64), confidences))
    value.backward()
    assert value.isfinite()
    if not labels and method != "adaptive-proxy-anchor":  # whose margins cost something by themselves
        assert value.item() == 0
        assert not any(leaf.grad.any() for leaf in loss.parameters())
    assert _has_finite_gradients(loss, embeddings)


@every_loss
def test_embeddings_on_top_of_each_other_have_finite_gradients(method: str) -> None:
    loss, embeddings = make_loss(method), torch.ones(6, 4).requires_grad_()  # all cosines among them are 1
    if hasattr(loss, "proxies"):
        loss.proxies.data[:2] = torch.tensor([[1.0] * 4, [-1.0] * 4])
    labels = torch.arange(6) % 3
    confidences = torch.nn.functional.one_hot(labels, 3).float()
    value = loss(embeddings, Batch(labels=labels, confidences=confidences))
    value.backward()
    assert value.isfinite()
    assert _has_finite_gradients(loss, embeddings)


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
    embeddings = drawn.embeddings.float().flip(0)
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
    assert bool(listed) == (LOSSES[method].has_proxies and method != "prism")  # whose default base has none
    assert all(group["lr"] == 0.02 for group in groups)


@pytest.mark.parametrize("kind", [*WITH_PROXIES, "multi-similarity"])
def test_the_norm_of_embeddings_and_proxies_does_not_matter(kind: str) -> None:
    drawn, loss = draw(13, batch=8, classes=3, width=4), make_loss(kind).double()
    value = loss(drawn.embeddings, drawn.batch)
    if kind in WITH_PROXIES:
        loss.proxies.data /= 3
    scales = torch.arange(1, 9, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(scales * drawn.embeddings, drawn.batch), value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", WITH_PROXIES)
def test_proxies_start_at_the_class_means_and_those_without_one_stay(kind: str) -> None:
    loss, untouched = (make_loss(kind, classes=4, width=3) for _ in range(2))
    means = torch.tensor([[0.0, 0.6, 0.8], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    loss.start_at(means)
    assert torch.equal(loss.proxies[[0, 2]], means[[0, 2]])
    assert torch.equal(loss.proxies[[1, 3]], untouched.proxies[[1, 3]])
    assert loss.proxies.requires_grad


WEIGHED = st.tuples(st.floats(-100, 100), st.one_of(st.just(0.0), st.floats(1e-6, 5)))


@settings(deadline=None, max_examples=60)
@given(pairs=st.lists(WEIGHED, min_size=1, max_size=8))
def test_the_weighted_average_is_the_sum_of_products_over_the_sum_of_weights(pairs) -> None:
    losses, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    total = sum(weight for _, weight in pairs)
    expected = sum(weight * loss for loss, weight in pairs) / total if total else 0.0
    assert float(average_losses(losses, weights)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_one_are_no_weights_and_an_empty_batch_costs_nothing(dtype: torch.dtype) -> None:
    losses = torch.tensor([3.0, -1.0, 0.25, 7.0], dtype=dtype)
    assert torch.equal(average_losses(losses, torch.ones(4)), average_losses(losses, None))
    assert average_losses(losses, torch.ones(4)).dtype == dtype
    assert float(average_losses(losses[:0], None)) == float(average_losses(losses[:0], torch.empty(0))) == 0
