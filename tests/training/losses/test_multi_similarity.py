"""Multi-Similarity against a loop over its equation and against pytorch-metric-learning, and its pair mining."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.oracles import losses as oracle
from tests.training.losses.draws import SIZES, assert_is_the_equation, draw, make_loss, value_and_gradients
from training.losses.anchor import cosine_to_proxies
from training.losses.interface import average_losses
from training.losses.multi_similarity import mine_pairs, multi_similarity_losses

OPTIONS = {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}
EVERY_PAIR = 3.0  # cosines differ by 2 at most


def multi_similarity_loss(
    embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None, **options: float
) -> Tensor:
    return average_losses(multi_similarity_losses(embeddings, labels, **options), weights)


@given(
    sizes=SIZES,
    alpha=st.sampled_from([2.0, 10.0]),
    beta=st.sampled_from([40.0, 50.0]),
    base=st.sampled_from([-0.2, 0.5]),
    epsilon=st.sampled_from([0.05, 0.1, EVERY_PAIR]),
)
@settings(max_examples=60, deadline=None)
def test_multi_similarity_is_its_equation_in_value_and_gradient(sizes, alpha, beta, base, epsilon) -> None:
    drawn = draw(**{**sizes, "batch": sizes["batch"] + 2})
    labels = drawn.labels.tolist()
    options = {"alpha": alpha, "beta": beta, "base": base, "epsilon": epsilon}
    assert_is_the_equation(
        value_and_gradients(multi_similarity_loss, [drawn.embeddings], drawn.labels, **options),
        value=oracle.multi_similarity(drawn.embeddings.tolist(), labels, **options),
        gradients=oracle.gradients(oracle.multi_similarity, [drawn.embeddings], labels, **options),
    )


def test_every_sample_has_the_loss_of_the_equation() -> None:
    drawn = draw(2, batch=9, classes=3, width=3)
    losses = multi_similarity_losses(drawn.embeddings, drawn.labels, **OPTIONS)
    expected = oracle.multi_similarity_samples(drawn.embeddings.tolist(), drawn.labels.tolist(), **OPTIONS)
    assert losses.shape == (9,)
    assert losses.tolist() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_multi_similarity_agrees_with_pytorch_metric_learning(seed: int, epsilon: float) -> None:
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    drawn = draw(seed, batch=20, classes=7, width=4)
    drawn.labels[0] = 99  # a class with one member
    x = drawn.embeddings.clone().requires_grad_()
    pairs = MultiSimilarityMiner(epsilon=epsilon)(x, drawn.labels)
    expected = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(x, drawn.labels, pairs)
    expected.backward()
    options = {**OPTIONS, "epsilon": epsilon}
    assert_is_the_equation(
        value_and_gradients(multi_similarity_loss, [drawn.embeddings], drawn.labels, **options),
        value=float(expected.detach()),
        gradients=[x.grad],
    )

    positive, negative = mine_pairs(
        cosine_to_proxies(drawn.embeddings, drawn.embeddings), drawn.labels, epsilon=epsilon
    )
    anchors, positives, others, negatives = (indices.tolist() for indices in pairs)
    assert set(map(tuple, positive.nonzero().tolist())) == set(zip(anchors, positives, strict=True))
    assert set(map(tuple, negative.nonzero().tolist())) == set(zip(others, negatives, strict=True))


def test_a_wide_mining_margin_keeps_every_pair() -> None:
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    drawn = draw(4, batch=12, classes=3, width=4)
    drawn.labels[:] = torch.arange(12) % 3
    x = drawn.embeddings.clone().requires_grad_()
    expected = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(x, drawn.labels)  # without a miner
    expected.backward()
    assert_is_the_equation(
        value_and_gradients(
            multi_similarity_loss, [drawn.embeddings], drawn.labels, **{**OPTIONS, "epsilon": EVERY_PAIR}
        ),
        value=float(expected.detach()),
        gradients=[x.grad],
    )


def test_mining_keeps_the_pairs_within_epsilon_of_the_hardest_of_the_other_kind() -> None:
    # sample 0 has the positives 1, 2, 3 and the negatives 4, 5, 6; only its row is looked at
    cosines = torch.eye(7)
    cosines[0, 1:] = torch.tensor([0.9, 0.65, 0.4, 0.6, 0.35, 0.25])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    positive, negative = mine_pairs(cosines, labels, epsilon=0.1)
    assert positive[0].nonzero().flatten().tolist() == [2, 3]  # below 0.6 + 0.1
    assert negative[0].nonzero().flatten().tolist() == [4, 5]  # above 0.4 - 0.1


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2, 3], [5, 5, 5, 5], [0], []],
    ids=["no positives", "no negatives", "one sample", "no samples"],
)
def test_a_batch_without_positives_or_without_negatives_costs_exactly_nothing(labels: list[int]) -> None:
    embeddings = draw(8, batch=len(labels), classes=1, width=3).embeddings
    target = torch.tensor(labels, dtype=torch.int64)
    value, gradient = value_and_gradients(multi_similarity_loss, [embeddings], target, **OPTIONS)
    assert float(value) == 0.0
    assert not gradient.any()


def test_a_sample_without_positives_costs_nothing_itself_and_counts_in_the_mean() -> None:
    drawn = draw(9, batch=5, classes=2, width=3)
    labels = torch.tensor([0, 0, 1, 1, 2])
    options = {**OPTIONS, "epsilon": EVERY_PAIR}
    leaf = drawn.embeddings.clone().requires_grad_()
    losses = multi_similarity_losses(leaf, labels, **options)
    (gradient,) = torch.autograd.grad(losses[4], leaf)
    assert not gradient.any()
    losses = losses.detach()
    assert float(losses[4]) == 0.0
    assert (losses[:4] > 0).all()
    mean = multi_similarity_loss(drawn.embeddings, labels, **options)
    assert float(mean) == pytest.approx(float(losses.sum()) / 5, rel=1e-14)


def test_separated_classes_keep_no_pair_and_cost_exactly_nothing() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0]])
    value, gradient = value_and_gradients(
        multi_similarity_loss, [embeddings], torch.tensor([0, 0, 1, 1]), **OPTIONS
    )
    assert float(value) == 0.0
    assert not gradient.any()


def test_two_copies_of_an_image_are_a_positive_pair() -> None:
    cosines = torch.tensor([[1.0, 1.0, 0.95], [1.0, 1.0, 0.95], [0.95, 0.95, 1.0]])
    positive, _ = mine_pairs(cosines, torch.tensor([0, 0, 1]), epsilon=0.1)
    assert positive.tolist() == [[False, True, False], [True, False, False], [False, False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_beyond_the_range_of_exp_neither_overflow_nor_vanish(dtype: torch.dtype) -> None:
    # the positives are opposite, the negatives almost the same: cosines -1 and nearly 1
    embeddings = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1], [-1.0, 0.0]], dtype=dtype)
    labels = torch.tensor([0, 0, 1, 1])
    options = {"alpha": 1e4, "beta": 1e4, "base": 0.5, "epsilon": 0.1}
    value, gradient = value_and_gradients(multi_similarity_loss, [embeddings], labels, **options)
    assert float(value) == pytest.approx(1.5 + 0.5, rel=0.02)
    assert gradient.isfinite().all()
    assert gradient.any()


def test_the_module_passes_every_option_on_and_has_no_parameters() -> None:
    drawn = draw(14, batch=8, classes=3, width=4)
    options = {"alpha": 3.0, "beta": 20.0, "base": 0.4, "epsilon": 0.2}
    loss = make_loss("multi-similarity", **{f"ms_{name}": value for name, value in options.items()})
    expected = multi_similarity_loss(drawn.embeddings, drawn.labels, **options)
    assert torch.equal(loss(drawn.embeddings, drawn.batch), expected)
    assert loss.parameter_groups(proxy_lr=0.01, weight_decay=1e-4) == []


WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.125, 1.0, 0.0, 3.0], dtype=torch.float64)


def test_weighted_multi_similarity_is_its_samples_weighed() -> None:
    drawn = draw(3, batch=8, classes=3, width=4)
    samples = oracle.multi_similarity_samples(drawn.embeddings.tolist(), drawn.labels.tolist(), **OPTIONS)
    weighed = sum(w * loss for w, loss in zip(WEIGHTS.tolist(), samples, strict=True)) / WEIGHTS.sum().item()
    found = multi_similarity_loss(drawn.embeddings, drawn.labels, **OPTIONS, weights=WEIGHTS)
    assert found.item() == pytest.approx(weighed, rel=1e-10)


def test_gradients_of_weighted_multi_similarity_agree_with_finite_differences() -> None:
    drawn = draw(3, batch=8, classes=3, width=4)
    options = {**OPTIONS, "beta": 8.0, "weights": WEIGHTS}
    inputs = [drawn.embeddings.requires_grad_()]
    assert torch.autograd.gradcheck(lambda x: multi_similarity_loss(x, drawn.labels, **options), inputs)
