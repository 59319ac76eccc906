"""Proxy-Anchor and its kin, Proxy-NCA and Multi-Similarity: loops over their equations, libraries, and edges."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import MultiSimilarityLoss, ProxyAnchorLoss, ProxyNCALoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

from tests.oracles import losses as oracle
from tests.training.losses.draws import (
    SIZES,
    Draw,
    assert_is_the_equation,
    draw,
    loss_function,
    make_loss,
    value_and_gradients,
)
from training.losses.anchor_loss import confidence_pairs
from training.losses.interface import (
    UNIT_PROXIES_ABOVE,
    Batch,
    average_losses,
    cosine_to_proxies,
    initial_proxies,
    log1p_sum_exp,
)
from training.losses.multi_similarity import mine_pairs, multi_similarity_losses
from training.losses.proxy_nca import proxy_nca_losses, scale_for
from training.options.losses import MultiSimilarityOptions

proxy_anchor_loss, smooth_proxy_anchor_loss = loss_function("proxy-anchor"), loss_function("spa")
adaptive_loss = loss_function("adaptive-proxy-anchor")


def proxy_nca_loss(embeddings: Tensor, proxies: Tensor, labels: Tensor, *, scale: float = 8.0) -> Tensor:
    return average_losses(proxy_nca_losses(embeddings, proxies, labels, scale=scale))


def multi_similarity_loss(embeddings: Tensor, labels: Tensor, **options: float) -> Tensor:
    mining = MultiSimilarityOptions(**{f"ms_{name}": value for name, value in options.items()})
    return average_losses(multi_similarity_losses(embeddings, labels, mining))


def _one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


ANCHOR = {"alpha": st.just(32.0)}
ADAPTIVE = {**ANCHOR, "kappa": _one_of(0.0, 0.5, 1.0), "margin_of": _one_of("proxy", "sample")}
MINING = {"alpha": _one_of(2.0, 10.0), "beta": _one_of(40.0, 50.0), "base": _one_of(-0.2, 0.5)}
EQUATIONS: dict[str, tuple[Any, Any, Callable[[Draw], tuple[Tensor, ...]], dict[str, Any]]] = {
    "proxy-anchor": (
        proxy_anchor_loss,
        oracle.proxy_anchor,
        lambda drawn: (drawn.embeddings, drawn.proxies),
        {**ANCHOR, "delta": st.just(0.1)},
    ),
    "spa": (
        smooth_proxy_anchor_loss,
        oracle.smooth_proxy_anchor,
        lambda drawn: (drawn.embeddings, drawn.proxies),
        {**ANCHOR, "delta": st.just(0.1), "beta": _one_of(1.0, 50.0, 200.0), "lambda_": _one_of(0.075, 0.1, 0.5)},
    ),
    "adaptive, one margin": (
        adaptive_loss,
        oracle.adaptive_proxy_anchor,
        lambda drawn: (drawn.embeddings, drawn.proxies, drawn.margins[0].clone()),
        ADAPTIVE,
    ),
    "adaptive, one a class": (
        adaptive_loss,
        oracle.adaptive_proxy_anchor,
        lambda drawn: (drawn.embeddings, drawn.proxies, drawn.margins),
        ADAPTIVE,
    ),
    "proxy-nca": (
        proxy_nca_loss,
        oracle.proxy_nca,
        lambda drawn: (drawn.embeddings, drawn.proxies),
        {"scale": _one_of(0.5, 1.0, 8.0, 32.0)},
    ),
    "multi-similarity": (
        multi_similarity_loss,
        oracle.multi_similarity,
        lambda drawn: (drawn.embeddings,),
        {**MINING, "epsilon": _one_of(0.05, 0.1, 3.0)},  # with 3 every pair is kept
    ),
}
"""Loss, oracle, what has a gradient, and options."""


@pytest.mark.parametrize("name", EQUATIONS)
@given(sizes=SIZES, data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_loss_is_its_equation_in_value_and_gradient(name: str, sizes, data) -> None:
    loss, equation, choose, choices = EQUATIONS[name]
    drawn, options = draw(**sizes), data.draw(st.fixed_dictionaries(choices))
    inputs, target = choose(drawn), drawn.confidences if name == "spa" else drawn.labels
    assert_is_the_equation(
        value_and_gradients(loss, inputs, target, **options),
        value=equation(*(tensor.tolist() for tensor in inputs), target.tolist(), **options),
        gradients=oracle.gradients(equation, inputs, target.tolist(), **options),
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("proxy-anchor", {"alpha": 4.0}),
        ("adaptive, one margin", {"alpha": 4.0}),
        ("adaptive, one a class", {"alpha": 4.0, "margin_of": "proxy"}),
        ("adaptive, one a class", {"alpha": 4.0, "margin_of": "sample"}),
        ("proxy-nca", {"scale": 3.0}),
        ("multi-similarity", {"beta": 8.0}),
    ],
)
def test_gradients_agree_with_finite_differences(name, options) -> None:
    loss, _, choose, _ = EQUATIONS[name]
    drawn = draw(3, batch=8, classes=3, width=4)
    inputs = [tensor.requires_grad_() for tensor in choose(drawn)]
    assert torch.autograd.gradcheck(lambda *leaves: loss(*leaves, drawn.labels, **options), inputs)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "options", "make_theirs"),
    [
        ("proxy-anchor", {"alpha": 32.0, "delta": 0.1}, lambda: ProxyAnchorLoss(6, 8, margin=0.1, alpha=32)),
        ("proxy-nca", {"scale": 1.0}, lambda: ProxyNCALoss(6, 8, softmax_scale=1)),
        ("proxy-nca", {"scale": 8.0}, lambda: ProxyNCALoss(6, 8, softmax_scale=8)),
    ],
)
def test_losses_of_proxies_agree_with_pytorch_metric_learning(name, options, make_theirs, seed: int) -> None:
    drawn, theirs = draw(seed, batch=20, classes=6, width=8), make_theirs().double()
    theirs.proxies = nn.Parameter(drawn.proxies.clone())
    x = drawn.embeddings.clone().requires_grad_()
    expected = theirs(x, drawn.labels)
    expected.backward()
    assert_is_the_equation(
        value_and_gradients(EQUATIONS[name][0], (drawn.embeddings, drawn.proxies), drawn.labels, **options),
        value=float(expected.detach()),
        gradients=(x.grad, theirs.proxies.grad),
    )


OPTIONS = {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_multi_similarity_and_its_mining_agree_with_pytorch_metric_learning(epsilon: float) -> None:
    drawn = draw(1, batch=20, classes=7, width=4)
    drawn.labels[0] = 99  # a class with one member
    x = drawn.embeddings.clone().requires_grad_()
    pairs = MultiSimilarityMiner(epsilon=epsilon)(x, drawn.labels)
    expected = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(x, drawn.labels, pairs)
    expected.backward()
    found = value_and_gradients(
        multi_similarity_loss, [drawn.embeddings], drawn.labels, **{**OPTIONS, "epsilon": epsilon}
    )
    assert_is_the_equation(found, value=float(expected.detach()), gradients=[x.grad])
    mined = mine_pairs(cosine_to_proxies(drawn.embeddings, drawn.embeddings), drawn.labels, epsilon=epsilon)
    for ours, anchors, partners in zip(mined, pairs[::2], pairs[1::2], strict=True):
        assert set(map(tuple, ours.nonzero().tolist())) == set(zip(anchors.tolist(), partners.tolist(), strict=True))


def test_mining_keeps_pairs_within_epsilon_of_the_hardest_of_the_other_kind_and_two_copies() -> None:
    # sample 0 has the positives 1, 2, 3 and the negatives 4, 5, 6; only its row counts here
    cosines = torch.eye(7)
    cosines[0, 1:] = torch.tensor([0.9, 0.65, 0.4, 0.6, 0.35, 0.25])
    positive, negative = mine_pairs(cosines, torch.tensor([0, 0, 0, 0, 1, 1, 2]), epsilon=0.1)
    assert positive[0].nonzero().flatten().tolist() == [2, 3]  # below 0.6 + 0.1
    assert negative[0].nonzero().flatten().tolist() == [4, 5]  # above 0.4 - 0.1
    copies = torch.tensor([[1.0, 1.0, 0.95], [1.0, 1.0, 0.95], [0.95, 0.95, 1.0]])
    positive, _ = mine_pairs(copies, torch.tensor([0, 0, 1]), epsilon=0.1)
    assert positive.tolist() == [[False, True, False], [True, False, False], [False, False, False]]


PARTED = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0]])


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 5, 5], [0], [], [0, 0, 1, 1]])
def test_without_a_pair_worth_training_multi_similarity_costs_exactly_nothing(labels: list[int]) -> None:
    target = torch.tensor(labels, dtype=torch.int64)
    value, gradient = value_and_gradients(multi_similarity_loss, [PARTED[: len(labels)]], target, **OPTIONS)
    assert float(value) == 0.0
    assert not gradient.any()


def test_the_only_class_there_is_costs_exactly_nothing() -> None:
    drawn = draw(6, batch=4, classes=1, width=3)
    value, *gradients = value_and_gradients(proxy_nca_loss, (drawn.embeddings, drawn.proxies), drawn.labels)
    assert float(value) == 0.0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_exp_cannot_hold_neither_overflows_nor_vanishes(dtype: torch.dtype) -> None:
    two = torch.eye(2, dtype=dtype)
    near = torch.tensor([[1.0, 1e-3], [1e-3, 1.0]], dtype=dtype)  # each at the other's proxy: exp(-4000) is 0
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1], [-1.0, 0.0]], dtype=dtype)
    confidences = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    sharp = {"alpha": 1e4, "beta": 1e4, "base": 0.5, "epsilon": 0.1}
    labels = torch.tensor([0, 0, 1, 1])  # the positives are opposite, the negatives almost the same
    for (value, *gradients), expected in (
        (value_and_gradients(proxy_nca_loss, (near, two), torch.tensor([1, 0]), scale=2000.0), 4000),
        (value_and_gradients(multi_similarity_loss, [opposite], labels, **sharp), 1.5 + 0.5),
        # every proxy has a positive at cosine -1 (32 * 1.1) or 0 and a negative at +1 (32 * 1.1) or 0
        (value_and_gradients(smooth_proxy_anchor_loss, (torch.cat([two, -two]), two), confidences, beta=1e4), 70.4),
    ):
        assert float(value) == pytest.approx(expected, rel=0.02)
        assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)


def test_smooth_proxy_anchor_at_the_edges_of_its_confidences() -> None:
    drawn = draw(7, batch=12, classes=4, width=6)
    inputs = drawn.embeddings, drawn.proxies
    one_hot = nn.functional.one_hot(drawn.labels, 4).double()
    smooth = value_and_gradients(smooth_proxy_anchor_loss, inputs, one_hot, beta=1e6)
    plain = value_and_gradients(proxy_anchor_loss, inputs, drawn.labels)
    for got, wanted in zip(smooth, plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    none, usual = (torch.zeros_like(one_hot), {"alpha": 32.0, "delta": 0.1, "lambda_": 0.1, "beta": 100.0})
    value = smooth_proxy_anchor_loss(*inputs, none)
    told = (tensor.tolist() for tensor in inputs)
    assert float(value) == pytest.approx(oracle.smooth_proxy_anchor(*told, none.tolist(), **usual), rel=1e-12)
    aligned, same = (drawn.embeddings[:1].repeat(count, 1) for count in (4, 12))  # every cosine is 1
    value, *gradients = value_and_gradients(
        smooth_proxy_anchor_loss, (same, aligned), torch.ones_like(one_hot), alpha=1e4
    )
    assert float(value) == 0.0  # exp(-1e4 * 0.9) is 0: nothing is left of the pull, and there is no push
    assert not any(gradient.any() for gradient in gradients)


def test_a_confidence_of_exactly_lambda_is_negative() -> None:
    around = torch.tensor([[0.1 - 1e-9, 0.1, 0.1 + 1e-9]], dtype=torch.float64)
    for confidences, columns in ((around, [2]), (torch.tensor([[0.1]]), [])):  # in float32 too
        pairs = confidence_pairs(confidences, lambda_=0.1, beta=100.0)
        assert pairs(0, confidences.shape[1], confidences.dtype)[0].tolist() == columns


def test_no_gradient_reaches_the_confidences_and_without_them_the_module_refuses() -> None:
    drawn = draw(12, batch=4, classes=3, width=4)
    drawn.confidences.requires_grad_()
    drawn.proxies.requires_grad_()
    smooth_proxy_anchor_loss(drawn.embeddings, drawn.proxies, drawn.confidences).backward()
    assert drawn.confidences.grad is None
    assert drawn.proxies.grad is not None
    with pytest.raises(ValueError, match="label confidences of phase 1"):
        make_loss("spa")(drawn.embeddings, Batch(labels=drawn.labels))


def test_proxy_nca_of_posteriors_is_the_mean_over_them_and_one_hot_ones_are_labels() -> None:
    drawn = draw(5, batch=6, classes=4, width=3)
    labels, posteriors = drawn.labels, drawn.confidences / drawn.confidences.sum(dim=1, keepdim=True)
    inputs = (drawn.embeddings, drawn.proxies)
    each = torch.stack([proxy_nca_losses(*inputs, torch.full_like(labels, k), scale=3.0) for k in range(4)], dim=1)
    torch.testing.assert_close(proxy_nca_losses(*inputs, posteriors, scale=3.0), (posteriors * each).sum(dim=1))
    one_hot = nn.functional.one_hot(labels, 4).double()
    torch.testing.assert_close(
        proxy_nca_losses(*inputs, one_hot, scale=3.0), proxy_nca_losses(*inputs, labels, scale=3.0)
    )
    loss = make_loss("proxy-nca", classes=4, width=3, targets="posteriors", nca_scale=3.0)
    found = torch.func.functional_call(
        loss, {"proxies": drawn.proxies}, (drawn.embeddings, Batch(labels, confidences=posteriors))
    )
    torch.testing.assert_close(found, (posteriors * each).sum(dim=1).mean())
    leaves = [tensor.requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(lambda x, p: proxy_nca_losses(x, p, posteriors, scale=3.0).mean(), leaves)
    with pytest.raises(ValueError, match="posteriors"):
        loss(drawn.embeddings, Batch(labels))


def test_margins_alone_cost_something() -> None:
    drawn = draw(4, batch=0, classes=3, width=4)
    inputs = (drawn.embeddings, drawn.proxies, drawn.margins)
    value, _, by_proxy, _ = value_and_gradients(adaptive_loss, inputs, drawn.labels, kappa=0.7)
    assert float(value) == pytest.approx(0.7 / float(drawn.margins.mean()), rel=1e-14)
    assert not by_proxy.any()


@pytest.mark.parametrize(("margins", "shape"), [("single", ()), ("per-class", (3,))])
def test_margins_start_at_delta_stay_positive_and_no_weight_decay_reaches_them(margins: str, shape) -> None:
    for delta in (1e-4, 0.1, 200.0):
        loss = make_loss("adaptive-proxy-anchor", delta=delta, margins=margins)
        torch.testing.assert_close(loss.margins.detach(), torch.full(shape, delta), rtol=1e-5, atol=0)
    optimizer = torch.optim.AdamW(loss.parameter_groups(proxy_lr=0.1, weight_decay=0.5))
    before, proxies = loss.margins.detach(), loss.proxies.detach().clone()
    for parameter in loss.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(loss.margins, before)
    torch.testing.assert_close(loss.proxies.detach(), proxies * (1 - 0.1 * 0.5))
    loss = make_loss("adaptive-proxy-anchor", margins=margins, kappa=0.0)  # nothing keeps them from 0
    optimizer = torch.optim.AdamW(loss.parameter_groups(proxy_lr=1.0, weight_decay=0.0))
    drawn = draw(16, batch=9, classes=3, width=4)
    for _ in range(30):
        optimizer.zero_grad()
        loss(drawn.embeddings.float(), drawn.batch).backward()
        optimizer.step()
    assert (loss.margins > 0).all()
    assert (loss.margins < 1e-3).all(), "they were driven towards 0"


@pytest.mark.parametrize(("classes", "scale"), [(4, 1.6), (100, 8.0), (1600, 32.0), (50_000, 32.0)])
def test_more_classes_have_a_larger_scale_up_to_a_bound(classes: int, scale: float) -> None:
    assert scale_for(classes) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("method", "given_options", "expect"),
    [
        (
            "proxy-nca",
            {"nca_scale": 3.0},
            lambda drawn, proxies: proxy_nca_loss(drawn.embeddings, proxies, drawn.labels, scale=3.0),
        ),
        (
            "proxy-nca",
            {"nca_scale": 0.0},
            lambda drawn, proxies: proxy_nca_loss(drawn.embeddings, proxies, drawn.labels, scale=scale_for(3)),
        ),
        (
            "multi-similarity",
            {"ms_alpha": 3.0, "ms_beta": 20.0, "ms_base": 0.4, "ms_epsilon": 0.2},
            lambda drawn, _: multi_similarity_loss(
                drawn.embeddings, drawn.labels, alpha=3.0, beta=20.0, base=0.4, epsilon=0.2
            ),
        ),
    ],
)
def test_the_module_passes_every_option_on(method: str, given_options, expect) -> None:
    drawn, loss = draw(14, batch=6, classes=3, width=4), make_loss(method, **given_options).double()
    expected = expect(drawn, getattr(loss, "proxies", None))
    torch.testing.assert_close(loss(drawn.embeddings, drawn.batch), expected, rtol=1e-12, atol=0)
    assert expected.isfinite()


@pytest.mark.parametrize("dim", [0, 1])
def test_the_sum_runs_over_the_members_along_the_dimension_asked_for(dim: int) -> None:
    logits = torch.tensor([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]], dtype=torch.float64)
    members = torch.tensor([[True, False, True], [True, True, False]])
    sums = [
        [1 + math.exp(0.5) + math.exp(1.5), 1 + math.exp(0.25), 1 + math.exp(3.0)],
        [1 + math.exp(0.5) + math.exp(3.0), 1 + math.exp(1.5) + math.exp(0.25)],
    ][dim]
    expected = torch.tensor(sums, dtype=torch.float64).log()
    torch.testing.assert_close(log1p_sum_exp(logits, members, dim=dim), expected, rtol=1e-14, atol=0)
    value, gradient = value_and_gradients(
        lambda x, nobody: log1p_sum_exp(x, nobody, dim=dim).sum(), [torch.full((2, 3), 1e30)], members & False
    )
    assert float(value) == 0.0
    assert not gradient.any()
    large = log1p_sum_exp(torch.tensor([[1e4, 1e4], [-1e4, 1e4]]), torch.ones(2, 2, dtype=torch.bool), dim=0)
    torch.testing.assert_close(large, torch.tensor([1e4, 1e4 + math.log(2)]))


def test_initial_proxies_have_the_authors_deviation_and_unit_norm_above_ten_thousand_classes() -> None:
    proxies, again = (initial_proxies(500, 256, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert float(proxies.detach().std()) == pytest.approx(math.sqrt(2 / 500), rel=0.01)
    assert torch.equal(proxies, again)
    few, many = (
        initial_proxies(UNIT_PROXIES_ABOVE + more, 8, generator=torch.Generator()).detach().norm(dim=1)
        for more in (0, 1)
    )
    torch.testing.assert_close(many, torch.ones(UNIT_PROXIES_ABOVE + 1))
    assert float(few.max()) < 0.1
