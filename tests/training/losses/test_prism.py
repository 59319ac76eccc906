"""PRISM against a loop over its equations, which images it selects, and its memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.oracles.losses import proxy_nca_samples
from tests.oracles.prism import PrismOracle
from tests.training.losses.draws import draw, make_loss
from training.losses.interface import Batch
from training.losses.prism import EMPTY, clean_probabilities

CLASSES, WIDTH = 3, 4
BASES = ("memory-contrastive", "proxy-nca")
every_base = pytest.mark.parametrize("base", BASES)


def make_prism(**options):
    return make_loss("prism", classes=CLASSES, width=WIDTH, **{f"prism_{name}": v for name, v in options.items()})


def make_clusters(seed: int, labels: list[int], *, spread: float = 0.1) -> Tensor:
    """Embeddings around the axis of their class."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(labels), WIDTH, generator=generator)
    return torch.eye(CLASSES, WIDTH)[labels] + spread * noise


def as_batch(labels: list[int] | Tensor) -> Batch:
    labels = torch.as_tensor(labels, dtype=torch.int64)
    return Batch(labels=labels)


@given(
    seed=st.integers(0, 2**31),
    base=st.sampled_from(BASES),
    rate=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
    memory=st.integers(1, 20),
    window=st.integers(1, 3),
    warm_up=st.integers(0, 2),
)
@settings(max_examples=40, deadline=None)
def test_batch_after_batch_the_loss_is_its_equation_in_value_and_gradient(seed, base, rate, memory, window, warm_up):
    loss = make_prism(base=base, rate=rate, memory=memory, window=window, warm_up=warm_up).double()
    oracle = PrismOracle(rate, memory, window, warm_up)
    for step in range(5):
        drawn = draw(seed + step, batch=6, classes=CLASSES, width=WIDTH)
        labels = drawn.labels.tolist()
        found, wanted = (drawn.embeddings.clone().requires_grad_() for _ in range(2))
        value = loss(found, as_batch(drawn.labels))
        selected = oracle.select(list(wanted), labels)
        if base == "proxy-nca":
            chosen = [i for i, trains in enumerate(selected) if trains]
            losses = proxy_nca_samples(wanted, loss.proxies.detach(), labels, scale=8.0, exp=torch.exp, log=torch.log)
            expected = sum((losses[i] for i in chosen), start=0 * wanted.sum()) / max(len(chosen), 1)
        else:
            expected = oracle.memory_contrastive(list(wanted), labels, selected)
        oracle.remember(list(wanted), labels, selected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-10, atol=1e-10)


@every_base
def test_gradients_beside_a_memory_agree_with_finite_differences(base: str) -> None:
    trained = make_prism(base=base, rate=0.2, memory=8).double()
    for seed in (1, 2):
        drawn = draw(seed, batch=6, classes=CLASSES, width=WIDTH)
        trained(drawn.embeddings, drawn.batch)
    state = {name: value.clone() for name, value in trained.state_dict().items()}

    def value(embeddings: Tensor) -> Tensor:
        loss = make_prism(base=base, rate=0.2, memory=8).double()
        loss.load_state_dict(state)
        return loss(embeddings, drawn.batch)

    embeddings = draw(3, batch=6, classes=CLASSES, width=WIDTH).embeddings.requires_grad_()
    assert torch.autograd.gradcheck(value, [embeddings])


def test_a_probability_is_a_softmax_over_the_classes_of_the_memory_alone() -> None:
    unit = torch.eye(4)[:2]
    remembered = torch.tensor([0, 0, EMPTY, 2])
    memory = torch.stack([unit[0], unit[1], 9 * unit[0], unit[1]])
    found = clean_probabilities(unit[[0, 0, 1]], torch.tensor([0, 1, 2]), memory, remembered, classes=3)
    e = torch.tensor(1.0).exp()
    expected = torch.stack([e.sqrt() / (e.sqrt() + 1), torch.ones(()), e / (e.sqrt() + e)])
    torch.testing.assert_close(found, expected)


@every_base
def test_an_image_far_from_its_class_neither_trains_nor_enters_the_memory(base: str) -> None:
    loss, labels = make_prism(base=base, rate=0.25, memory=100, warm_up=2), [0, 1, 2] * 4
    for seed in range(2):
        loss(make_clusters(seed, labels), as_batch(labels))
    assert int((loss.remembered != EMPTY).sum()) == 24
    wrong = [0, 5, 7]  # one image of every class, with the next label
    given_labels = [(label + 1) % CLASSES if i in wrong else label for i, label in enumerate(labels)]
    embeddings = make_clusters(9, labels).requires_grad_()
    loss(embeddings, as_batch(given_labels)).backward()
    right = [i for i in range(12) if i not in wrong]
    assert not embeddings.grad[wrong].any()
    assert embeddings.grad[right].any(dim=1).all()
    torch.testing.assert_close(loss.memory[-9:], torch.nn.functional.normalize(embeddings.detach()[right]))
    assert loss.remembered[-9:].tolist() == [given_labels[i] for i in right]


def test_where_no_image_reaches_the_mean_threshold_only_the_last_one_counts() -> None:
    loss, labels = make_prism(rate=0.5, memory=100, window=3, warm_up=1), [0, 1, 2] * 2
    loss(make_clusters(0, labels), as_batch(labels))
    loss.thresholds = torch.tensor([0.9, 0.9, 0.9])
    loss(make_clusters(1, labels), as_batch(labels))
    assert loss.thresholds[:2].tolist() == [0, 0]
    assert 0.3 < float(loss.thresholds[2]) < 0.9
    assert int((loss.remembered != EMPTY).sum()) == 6 + 3


@every_base
def test_a_resumed_loss_goes_on_with_the_memory_and_the_thresholds(base: str) -> None:
    options = {"base": base, "rate": 0.3, "memory": 20, "window": 2, "warm_up": 1}
    straight, resumed = make_prism(**options), make_prism(**options)
    for seed in range(3):
        drawn = draw(seed, batch=8, classes=CLASSES, width=WIDTH)
        straight(drawn.embeddings.float(), drawn.batch)
    resumed.load_state_dict(straight.state_dict())
    fresh = make_prism(**options)
    for seed in range(3, 6):
        drawn = draw(seed, batch=8, classes=CLASSES, width=WIDTH)
        value, again, other = (one(drawn.embeddings.float(), drawn.batch) for one in (straight, resumed, fresh))
        assert torch.equal(value, again)
    assert not torch.equal(value, other)


@every_base
def test_an_empty_batch_costs_nothing_and_leaves_the_state_as_it_is(base: str) -> None:
    loss, labels = make_prism(base=base, rate=0.3), [0, 1, 2, 0]
    for seed in range(2):
        loss(make_clusters(seed, labels), as_batch(labels))
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    embeddings = torch.zeros(0, WIDTH, requires_grad=True)
    value = loss(embeddings, as_batch([]))
    value.backward()
    assert value.item() == 0
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_loss_is_that_of_the_cpu() -> None:
    here, there = make_prism(rate=0.3, memory=20), make_prism(rate=0.3, memory=20).cuda()
    for seed in range(4):
        drawn = draw(seed, batch=8, classes=CLASSES, width=WIDTH)
        value = here(drawn.embeddings.float(), drawn.batch)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = there(drawn.embeddings.float().cuda(), as_batch(drawn.labels.cuda()))
        torch.testing.assert_close(found.cpu(), value)
