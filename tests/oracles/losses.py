"""The losses as loops over their printed equations, one number at a time: slow, and nothing like the real code.

The same loops run on floats (with `math`) and on 0-d float64 tensors (with `torch`), whose gradient is autograd's.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Numbers = Sequence[Sequence[Any]]


def cosine(a: Sequence[Any], b: Sequence[Any]) -> Any:
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def proxy_anchor(
    embeddings: Numbers,
    proxies: Numbers,
    labels: Sequence[int],
    *,
    alpha: float,
    delta: float,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Proxy-Anchor, Eq. 4."""
    with_positive = 0
    positive_term, negative_term = 0.0, 0.0
    for number, proxy in enumerate(proxies):
        pull, push = 0.0, 0.0
        positives = [x for x, label in zip(embeddings, labels, strict=True) if label == number]
        negatives = [x for x, label in zip(embeddings, labels, strict=True) if label != number]
        for x in positives:
            pull = pull + exp(-alpha * (cosine(x, proxy) - delta))
        for x in negatives:
            push = push + exp(alpha * (cosine(x, proxy) + delta))
        if positives:
            with_positive += 1
            positive_term = positive_term + log(1 + pull)
        if negatives:
            negative_term = negative_term + log(1 + push)
    return positive_term / max(with_positive, 1) + negative_term / len(proxies)


def smooth_proxy_anchor(
    embeddings: Numbers,
    proxies: Numbers,
    confidences: Sequence[Sequence[float]],
    *,
    alpha: float,
    delta: float,
    lambda_: float,
    beta: float,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Smooth Proxy-Anchor, Eq. 5 with the weights of Eq. 7."""
    with_positive = 0
    positive_term, negative_term = 0.0, 0.0
    for number, proxy in enumerate(proxies):
        pull, push = 0.0, 0.0
        positives, negatives = 0, 0
        for x, row in zip(embeddings, confidences, strict=True):
            weight = _sigmoid(beta * (row[number] - lambda_))
            if row[number] > lambda_:
                positives += 1
                pull = pull + weight * exp(-alpha * (cosine(x, proxy) - delta))
            else:
                negatives += 1
                push = push + (1 - weight) * exp(alpha * (cosine(x, proxy) + delta))
        if positives:
            with_positive += 1
            positive_term = positive_term + log(1 + pull)
        if negatives:
            negative_term = negative_term + log(1 + push)
    return positive_term / max(with_positive, 1) + negative_term / len(proxies)


def _sigmoid(value: float) -> float:
    if value < -700:  # exp would leave the range of a float; the result is below 1e-304
        return 0.0
    return 1 / (1 + math.exp(-value))


def adaptive_proxy_anchor(
    embeddings: Numbers,
    proxies: Numbers,
    margins: Any,
    labels: Sequence[int],
    *,
    alpha: float,
    kappa: float,
    margin_of: str,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Adaptive Proxy-Anchor, Eqs. 2-4; the margins are one number, or one a class."""
    by_class = margins if isinstance(margins, list) else [margins] * len(proxies)
    with_positive = 0
    positive_term, negative_term = 0.0, 0.0
    for number, proxy in enumerate(proxies):
        pull, push = 0.0, 0.0
        for x, label in zip(embeddings, labels, strict=True):
            if label == number:
                pull = pull + exp(-alpha * (cosine(x, proxy) - by_class[label]))
            else:
                margin = by_class[number] if margin_of == "proxy" else by_class[label]
                push = push + exp(alpha * (cosine(x, proxy) + margin))
        if any(label == number for label in labels):
            with_positive += 1
            positive_term = positive_term + log(1 + pull)
        if any(label != number for label in labels):
            negative_term = negative_term + log(1 + push)
    anchored = positive_term / max(with_positive, 1) + negative_term / len(proxies)
    return anchored + kappa / (sum(by_class) / len(by_class))


def proxy_nca_samples(
    embeddings: Numbers,
    proxies: Numbers,
    labels: Sequence[int],
    *,
    scale: float,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> list[Any]:
    """Proxy-NCA of each sample, its own proxy among those of the denominator."""
    losses = []
    for x, label in zip(embeddings, labels, strict=True):
        terms = [exp(-scale * _squared_distance(_unit(x), _unit(proxy))) for proxy in proxies]
        losses.append(-log(terms[label] / sum(terms)))
    return losses


def proxy_nca(embeddings: Numbers, proxies: Numbers, labels: Sequence[int], **options: Any) -> Any:
    losses = proxy_nca_samples(embeddings, proxies, labels, **options)
    return sum(losses) / len(losses)


def _unit(vector: Sequence[Any]) -> list[Any]:
    norm = sum(v * v for v in vector) ** 0.5
    return [v / norm for v in vector]


def _squared_distance(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def multi_similarity(
    embeddings: Numbers,
    labels: Sequence[int],
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float,
    exp: Callable[[Any], Any] = math.exp,
    log: Callable[[Any], Any] = math.log,
) -> Any:
    """Multi-Similarity, the mean of each sample's loss over its mined pairs."""
    losses = []
    for i, x in enumerate(embeddings):
        positives, negatives = [], []
        for j, y in enumerate(embeddings):
            if j != i:
                (positives if labels[j] == labels[i] else negatives).append(cosine(x, y))
        hard_positives = [s for s in positives if negatives and s - epsilon < max(negatives)]
        hard_negatives = [s for s in negatives if positives and s + epsilon > min(positives)]
        loss = 0.0
        if hard_positives:
            loss = loss + log(1 + sum(exp(-alpha * (s - base)) for s in hard_positives)) / alpha
        if hard_negatives:
            loss = loss + log(1 + sum(exp(beta * (s - base)) for s in hard_negatives)) / beta
        losses.append(loss)
    return sum(losses) / len(losses)


def gradients(loss: Callable[..., Any], inputs: Sequence[Tensor], target: Any, **options: Any) -> list[Tensor]:
    """Float64 gradients of one of the losses above, of the inputs' shapes, entry by entry through autograd."""
    entries = [_entries(tensor.double()) for tensor in inputs]
    leaves = list(_flat(entries))
    value = loss(*entries, target, exp=torch.exp, log=torch.log, **options)
    if not isinstance(value, Tensor):  # not one entry takes part
        return [torch.zeros_like(tensor.double()) for tensor in inputs]
    found = iter(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))
    return [torch.stack([next(found) for _ in range(t.numel())]).reshape(t.shape) for t in inputs]


def _entries(values: Tensor) -> Any:
    if values.ndim == 0:
        return values.detach().clone().requires_grad_()
    return [_entries(value) for value in values]


def _flat(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    else:
        for inner in nested:
            yield from _flat(inner)
