"""The losses of pytorch-metric-learning: the library's own values, its memory, and without the library."""

import sys
from collections.abc import Callable

import pytest
import torch
from pytorch_metric_learning import losses as library
from torch import Tensor, nn

from index.errors import InputError, MissingDependencyError
from tests.training.losses.draws import draw, make_loss
from training.losses.interface import Batch
from training.options.losses import LIBRARY_METHODS

CLASSES, WIDTH, MEMORY = 3, 4, 1024
WITH_WEIGHTS = ("soft-triple", "norm-softmax")
OF_PAIRS = tuple(method for method in LIBRARY_METHODS if method not in WITH_WEIGHTS)
THEIRS: dict[str, Callable[[], nn.Module]] = {
    "triplet": lambda: library.TripletMarginLoss(margin=0.05),
    "contrastive": lambda: library.ContrastiveLoss(pos_margin=0, neg_margin=1),
    "lifted-structure": lambda: library.LiftedStructureLoss(neg_margin=1, pos_margin=0),
    "circle": lambda: library.CircleLoss(m=0.4, gamma=80),
    "soft-triple": lambda: library.SoftTripleLoss(CLASSES, WIDTH, centers_per_class=10, la=20, gamma=0.1, margin=0.01),
    "norm-softmax": lambda: library.NormalizedSoftmaxLoss(CLASSES, WIDTH, temperature=0.05),
    "fast-ap": lambda: library.FastAPLoss(num_bins=10),
    "cross-batch-memory": lambda: library.CrossBatchMemory(library.ContrastiveLoss(), WIDTH, memory_size=MEMORY),
}  # fmt: skip


def draw_batch(seed: int, *, size: int = 12) -> tuple[Tensor, Batch]:
    drawn = draw(seed, batch=size, classes=CLASSES, width=WIDTH)
    return drawn.embeddings.float(), drawn.batch


@pytest.mark.parametrize("method", LIBRARY_METHODS)
def test_a_loss_is_the_librarys_own_in_value_and_gradient_batch_after_batch(method: str) -> None:
    ours, theirs = make_loss(method), THEIRS[method]()
    weights = {f"inner.{name}": weight for name, weight in theirs.named_parameters()}
    ours.load_state_dict({**ours.state_dict(), **weights})
    for seed in range(3):
        embeddings, batch = draw_batch(seed)
        found, wanted = (embeddings.clone().requires_grad_() for _ in range(2))
        value, expected = ours(found, batch), theirs(wanted, batch.labels)
        value.backward()
        expected.backward()
        assert value.item() > 0
        assert torch.equal(value, expected)
        assert torch.equal(found.grad, wanted.grad)


@pytest.mark.parametrize("stop", [2, 3, 5])  # 800 of 1024 places written; once round; twice round
def test_a_resumed_training_has_the_memory_of_before_full_or_not(stop: int) -> None:
    straight, resumed = make_loss("cross-batch-memory"), make_loss("cross-batch-memory", seed=1)
    for seed in range(stop):
        straight(*draw_batch(seed, size=400))
    resumed.load_state_dict(straight.state_dict())
    for seed in range(stop, 7):
        assert torch.equal(straight(*draw_batch(seed, size=400)), resumed(*draw_batch(seed, size=400)))


def test_the_memory_forms_pairs_with_earlier_batches() -> None:
    loss = make_loss("cross-batch-memory")
    (first, batch), (second, _) = draw_batch(1), draw_batch(2)
    alone = make_loss("cross-batch-memory")(second, batch)
    loss(first, batch)
    loss(*draw_batch(6, size=0))  # changes nothing
    assert not torch.equal(loss(second, batch), alone)


def test_a_batch_larger_than_the_memory_is_refused() -> None:
    loss = make_loss("cross-batch-memory")
    assert loss(*draw_batch(1, size=MEMORY)).isfinite()
    with pytest.raises(InputError, match="remembers 1024 embeddings, but a batch has 1025: lower --head-batch-size"):
        loss(*draw_batch(1, size=MEMORY + 1))


@pytest.mark.parametrize(
    ("method", "labels"),
    [
        *((method, [1]) for method in OF_PAIRS),
        *((method, [0, 1, 2]) for method in ("triplet", "lifted-structure", "circle", "fast-ap")),  # none positive
        *((method, [1, 1, 1]) for method in ("triplet", "lifted-structure", "circle")),  # none negative
    ],
)
def test_a_batch_without_the_pairs_that_a_loss_needs_costs_exactly_nothing(method: str, labels: list[int]) -> None:
    loss = make_loss(method)
    embeddings = draw_batch(5, size=len(labels))[0].requires_grad_()
    batch = Batch(labels=torch.tensor(labels, dtype=torch.int64), rows=torch.arange(len(labels)))
    value = loss(embeddings, batch)
    value.backward()
    assert value.item() == 0.0
    for tensor in (embeddings, *loss.parameters()):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    told = r"--method triplet needs the package 'pytorch-metric-learning'.*pip install 'retrieval-app\[losses\]'"
    with pytest.raises(MissingDependencyError, match=told):
        make_loss("triplet")
