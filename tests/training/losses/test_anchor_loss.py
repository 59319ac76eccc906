"""The loss in chunks: no chunk size changes it, nothing of all classes and the whole batch is made, and its edges."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.losses.draws import Draw, draw, loss_function, value_and_gradients
from training.losses import anchor_loss as chunks
from training.losses.anchor_loss import confidence_pairs, label_pairs
from training.losses.interface import log1p_sum_exp

Found = tuple[Tensor, ...]
proxy_anchor_loss, smooth_proxy_anchor_loss = loss_function("proxy-anchor"), loss_function("spa")
adaptive_loss = loss_function("adaptive-proxy-anchor")


def _adaptive(margin_of: str) -> Callable[..., Tensor]:
    return lambda x, proxies, margins, drawn, **options: adaptive_loss(
        x, proxies, margins, drawn.labels, margin_of=margin_of, **options
    )


LOSSES: dict[str, Callable[..., Tensor]] = {
    "proxy-anchor": lambda x, proxies, margins, drawn, **options: (
        0 * margins.sum() + proxy_anchor_loss(x, proxies, drawn.labels, **options)
    ),
    "spa": lambda x, proxies, margins, drawn, **options: (
        0 * margins.sum() + smooth_proxy_anchor_loss(x, proxies, drawn.confidences, **options)
    ),
    "adaptive by proxy": _adaptive("proxy"),
    "adaptive by sample": _adaptive("sample"),
}


def _measure(name: str, drawn: Draw, **options: Any) -> Found:
    """Value and gradients by embeddings, proxies and margins."""
    return value_and_gradients(LOSSES[name], (drawn.embeddings, drawn.proxies, drawn.margins), drawn, **options)


every_loss = pytest.mark.parametrize("name", LOSSES)


@contextmanager
def _chunks_of(classes: int, *, batch: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_VALUES", classes * batch)
        yield


def _assert_same(found: Found, expected: Found, *, within: float = 1e-12) -> None:
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=within, atol=within)


@every_loss
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 9),
    classes=st.integers(1, 12),
    size=st.integers(1, 12),
    alpha=st.sampled_from([4.0, 32.0, 900.0]),
)
@settings(max_examples=25, deadline=None)
def test_the_size_of_a_chunk_never_changes_value_or_gradient(name, seed, batch, classes, size, alpha) -> None:
    drawn = draw(seed, batch=batch, classes=classes, width=3)
    whole = _measure(name, drawn, alpha=alpha)
    with _chunks_of(size, batch=batch):
        _assert_same(_measure(name, drawn, alpha=alpha), whole)


@pytest.mark.parametrize("by", ["labels", "confidences"])
@pytest.mark.parametrize("alpha", [4.0, 32.0])
def test_the_loss_in_chunks_is_the_plain_one(by: str, alpha: float) -> None:
    drawn = draw(8, batch=9, classes=12, width=3)
    pairs = label_pairs(drawn.labels) if by == "labels" else confidence_pairs(drawn.confidences, lambda_=0.1, beta=5.0)
    found, plain = (
        value_and_gradients(loss, (drawn.embeddings, drawn.proxies, drawn.margins), pairs, alpha=alpha)
        for loss in (lambda x, p, m, pairs, **options: chunks.anchor_loss(x, p, pairs, margins=m, **options)[0], _plain)
    )
    _assert_same(found, plain)


def _plain(embeddings: Tensor, proxies: Tensor, margins: Tensor, pairs: chunks.Pairs, *, alpha: float) -> Tensor:
    """The loss over all classes at once, as its equation reads."""
    columns, chosen, *weights = pairs(0, len(proxies), embeddings.dtype)
    cosines = nn.functional.normalize(embeddings) @ nn.functional.normalize(proxies).T  # (B, C)
    positive = torch.zeros_like(cosines, dtype=torch.bool).index_copy_(1, columns, chosen)
    w, v = (torch.ones(()) if one is None else one for one in weights)
    pull = log1p_sum_exp((-alpha * (cosines - margins))[:, columns] + w.log(), chosen)  # (|P+|,)
    push = log1p_sum_exp(alpha * (cosines + margins) + v.log(), ~positive)  # (C,)
    return pull.sum() / max(len(columns), 1) + push.mean()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_that_are_known_not_to_overflow_are_those_that_are_kept_from_it(name, dtype, monkeypatch) -> None:
    drawn = draw(1, batch=40, classes=30, width=5)
    drawn = Draw(
        *(
            part.to(dtype) if part.is_floating_point() else part
            for part in (drawn.embeddings, drawn.proxies, drawn.confidences, drawn.margins, drawn.labels)
        )
    )
    as_they_are = _measure(name, drawn)
    monkeypatch.setitem(chunks.SAFE_EXPONENTS, dtype, 0.0)
    _assert_same(as_they_are, _measure(name, drawn), within=1e-12 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize("alpha", [32.0, 1e5])
def test_the_float32_loss_is_the_float64_loss_whatever_alpha(alpha: float) -> None:
    drawn = draw(2, batch=24, classes=20, width=6)
    inputs = (drawn.embeddings.float(), drawn.proxies.float())
    precise = value_and_gradients(
        proxy_anchor_loss, [part.double() for part in inputs], drawn.labels, alpha=alpha, delta=0.5
    )
    found = value_and_gradients(proxy_anchor_loss, inputs, drawn.labels, alpha=alpha, delta=0.5)
    for got, wanted in zip(found, precise, strict=True):
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < 2e-7 * alpha


class _LargestMade(TorchDispatchMode):
    """How many numbers the largest tensor has that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(part, Tensor):
                self.numbers = max(self.numbers, part.numel())
        return made


@pytest.mark.parametrize("by", ["labels", "columns"])
def test_nothing_is_made_of_all_classes_and_the_whole_batch(by: str) -> None:
    batch, classes, width = 64, 5000, 2
    drawn = draw(3, batch=batch, classes=classes, width=width)
    embeddings, proxies = (part.float().requires_grad_() for part in (drawn.embeddings, drawn.proxies))
    pairs = label_pairs(drawn.labels)
    if by == "columns":
        pairs = confidence_pairs(_Factors(batch, classes), lambda_=0.5, beta=100.0)
    with _chunks_of(100, batch=batch), _LargestMade() as largest:
        chunks.anchor_loss(embeddings, proxies, pairs, alpha=32.0, margins=0.1)[0].backward()
    assert largest.numbers == classes * width < batch * classes
    assert proxies.grad.any()


class _Factors:
    """(B, C) confidences of rank 3, by columns."""

    def __init__(self, batch: int, classes: int) -> None:
        generator = torch.Generator().manual_seed(4)
        self.left, self.right = (torch.randn(size, 3, generator=generator) for size in (batch, classes))

    def columns(self, start: int, stop: int) -> Tensor:
        return torch.sigmoid(self.left @ self.right[start:stop].T)


def test_confidences_by_columns_are_those_given_at_once() -> None:
    drawn, factors = draw(5, batch=7, classes=11, width=4), _Factors(7, 11)
    inputs = (drawn.embeddings, drawn.proxies)
    at_once = value_and_gradients(smooth_proxy_anchor_loss, inputs, factors.columns(0, 11))
    with _chunks_of(3, batch=7):
        by_columns = value_and_gradients(smooth_proxy_anchor_loss, inputs, factors)
    _assert_same(by_columns, at_once)


def test_the_positives_of_every_sample_are_counted_over_all_chunks() -> None:
    drawn = draw(6, batch=9, classes=13, width=3)
    pairs = confidence_pairs(drawn.confidences, lambda_=0.1, beta=100.0)
    with _chunks_of(4, batch=9):
        _, found = chunks.anchor_loss(drawn.embeddings, drawn.proxies, pairs, alpha=32.0, margins=0.1)
        _, by_label = chunks.anchor_loss(
            drawn.embeddings, drawn.proxies, label_pairs(drawn.labels), alpha=32.0, margins=0.1
        )
    assert torch.equal(found, (drawn.confidences > 0.1).sum(dim=1))
    assert torch.equal(by_label, torch.ones(9, dtype=torch.int64))


def test_a_factor_before_the_loss_multiplies_its_gradients_and_a_kept_graph_gives_them_again() -> None:
    drawn = draw(7, batch=6, classes=5, width=4)
    leaves = [part.requires_grad_() for part in (drawn.embeddings, drawn.proxies)]
    value = proxy_anchor_loss(*leaves, drawn.labels)
    once = torch.autograd.grad(value, leaves, retain_graph=True)
    thrice = torch.autograd.grad(3 * value, leaves, retain_graph=True)
    again = torch.autograd.grad(value, leaves)
    for first, larger, second in zip(once, thrice, again, strict=True):
        torch.testing.assert_close(larger, 3 * first)
        assert torch.equal(first, second)


def test_a_second_derivative_is_refused_and_without_gradients_the_value_is_the_same() -> None:
    drawn = draw(9, batch=4, classes=3, width=4)
    leaf = drawn.embeddings.requires_grad_()
    value = proxy_anchor_loss(leaf, drawn.proxies, drawn.labels)
    with torch.no_grad():
        assert torch.equal(proxy_anchor_loss(leaf, drawn.proxies, drawn.labels), value)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(value, leaf, create_graph=True)


@pytest.mark.parametrize("classes", [0, 3])
def test_without_samples_or_classes_the_loss_is_0_and_so_are_its_gradients(classes: int) -> None:
    embeddings = torch.ones(0 if classes else 2, 4, requires_grad=True)
    proxies = torch.ones(classes, 4, requires_grad=True)
    value = proxy_anchor_loss(embeddings, proxies, torch.zeros(len(embeddings), dtype=torch.int64))
    value.backward()
    assert value.item() == 0.0
    assert not embeddings.grad.any()
    assert not proxies.grad.any()
