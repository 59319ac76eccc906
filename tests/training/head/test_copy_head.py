"""The output `copy`: its losses against loops over the equations, its batches, its threshold, and what it learns."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.nn.functional import normalize

from training.head.copy_head import CopyHead, contrast_copies, fit_copy_head, order_alike, spread_images
from training.run.copy_stage import choose_threshold

PICTURES = torch.tensor([0, 1, 2, 0, 1, 3])


def unit_rows(count: int) -> Tensor:
    """(count, 4) float64 rows of unit length."""
    generator = torch.Generator().manual_seed(0)
    return normalize(torch.randn(count, 4, generator=generator, dtype=torch.float64))


def test_copies_are_contrasted_with_all_others_of_the_batch() -> None:
    rows = unit_rows(len(PICTURES))
    losses = []
    for i, own in enumerate(PICTURES.tolist()):
        others = [k for k in range(len(rows)) if k != i]
        scores = {k: math.exp(float(rows[i] @ rows[k]) / 0.1) for k in others}
        losses += [-math.log(scores[j] / sum(scores.values())) for j in others if PICTURES[j] == own]
    assert len(losses) == 4
    found = contrast_copies(rows, PICTURES, temperature=0.1)
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-10)


def test_pictures_are_spread_by_the_distance_to_the_nearest_other_one() -> None:
    rows = unit_rows(len(PICTURES))
    expected = [
        -math.log(min(math.dist(row.tolist(), rows[j].tolist()) for j in range(len(rows)) if PICTURES[j] != own))
        for row, own in zip(rows, PICTURES.tolist(), strict=True)
    ]
    assert spread_images(rows, PICTURES).item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    rows = unit_rows(len(PICTURES)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: contrast_copies(x, PICTURES, temperature=0.3), rows)
    assert torch.autograd.gradcheck(lambda x: spread_images(x, PICTURES), rows)


def test_without_copies_or_without_others_the_losses_are_zero_and_finite() -> None:
    rows = unit_rows(3).requires_grad_()
    for loss in (contrast_copies(rows, torch.arange(3), temperature=0.1), spread_images(rows, torch.zeros(3))):
        (gradient,) = torch.autograd.grad(loss, rows)
        assert loss.item() == 0
        assert not gradient.any()


def test_pictures_that_look_the_same_give_finite_gradients() -> None:
    rows = normalize(torch.ones(2, 4)).requires_grad_()
    loss = spread_images(rows, torch.arange(2))
    loss.backward()
    assert rows.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(rows.grad).all()


PAIRS = np.array([[1, 2], [0, 3], [3, 0], [2, 1]])


@pytest.mark.parametrize("together", [1, 2, 9])
def test_every_picture_comes_once_even_where_nobody_is_alike(together: int) -> None:
    for alike in (np.random.default_rng(0).integers(50, size=(50, 5)), np.full((50, 2), -1)):
        order = order_alike(alike, np.random.default_rng(1), together=together)
        assert sorted(order.tolist()) == list(range(50))


def test_a_picture_is_followed_by_the_one_most_alike() -> None:
    for seed in range(8):
        order = order_alike(PAIRS, np.random.default_rng(seed), together=2).tolist()
        assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 1}), frozenset({2, 3})}


cosines = arrays(np.float32, st.integers(1, 40), elements=st.floats(-1, 1, width=32))


@given(cosines, cosines, st.sampled_from([0.5, 0.9, 0.99]))
def test_the_threshold_is_the_lowest_of_enough_copies(copies: np.ndarray, others: np.ndarray, precision: float) -> None:
    threshold = choose_threshold(copies, others, precision=precision)

    def holds(at: float) -> bool:
        found, wrong = (copies >= at).sum(), (others >= at).sum()
        return bool(found >= precision * (found + wrong))

    above = [float(at) for at in np.unique(copies) if at >= threshold]
    assert threshold == 1 or all(map(holds, above))
    below = [float(at) for at in np.unique(copies) if at < threshold]
    assert not below or not all(map(holds, [max(below), *above]))


def test_a_cosine_that_rounding_put_above_one_makes_a_threshold_of_one() -> None:
    above = np.nextafter(np.float32(1), np.float32(2))
    assert choose_threshold(np.array([above, above]), np.array([0.5, 0.6], dtype=np.float32)) == 1.0
    nothing_tells = (np.array([0.1, 0.2], dtype=np.float32), np.array([0.9, 0.8], dtype=np.float32))
    assert choose_threshold(*nothing_tells) == 1


KINDS, OF_KIND, COPIES, WIDTH = 6, 12, 4, 32


def _features(*, seed: int = 0) -> np.ndarray:
    """(72, 5, 32): copies keep the first 16 features, in which images of a kind differ by little, and no others."""
    random = np.random.default_rng(seed)
    kinds = np.repeat(random.normal(size=(KINDS, WIDTH)), OF_KIND, axis=0)
    own = random.normal(size=(len(kinds), WIDTH)) * np.repeat([0.5, 3], 16)
    views = np.repeat((kinds + own)[:, None], 1 + COPIES, axis=1)
    views[:, 1:, 16:] = 3 * random.normal(size=(len(kinds), COPIES, 16))
    return views.astype(np.float32)


def _found_first(rows: np.ndarray) -> float:
    originals = rows[:, 0]
    best = np.einsum("nvd,md->nvm", rows[:, 1:], originals).argmax(axis=2)
    return float((best == np.arange(len(rows))[:, None]).mean())


def _fit(views: np.ndarray, *, groups: np.ndarray | None = None, seed: int = 0, steps: int = 200) -> CopyHead:
    groups = np.arange(len(views)) if groups is None else groups
    return fit_copy_head(views, groups, copy_dim=16, seed=seed, steps=steps)


def test_copies_of_images_that_did_not_teach_find_theirs() -> None:
    views = _features()
    teach = np.arange(len(views)) % 3 != 0
    unit = views / np.linalg.norm(views, axis=2, keepdims=True)
    head = _fit(views[teach])
    found = head(torch.from_numpy(views[~teach])).numpy()
    assert _found_first(unit[~teach]) < 0.4
    assert _found_first(found) > 0.8


def test_a_seed_gives_the_same_bits_again() -> None:
    views = _features()
    first, again, other = (_fit(views, seed=seed, steps=20).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["last.weight"], other["last.weight"])


def test_images_that_show_the_same_picture_are_not_driven_apart() -> None:
    views = _features()
    views[1] = views[0]  # the image lies there twice
    apart = np.arange(len(views))
    known = np.where(apart == 1, 0, apart)
    found = [_fit(views, groups=groups)(torch.from_numpy(views[0])).numpy() for groups in (apart, known)]
    near = [float((rows[1:] @ rows[0]).mean()) for rows in found]
    assert near[1] > near[0], "copies come nearer where their twin is none of the others"


def test_a_feature_that_never_differs_gives_finite_rows() -> None:
    views = _features()
    views[:, :, 0] = 1
    assert torch.isfinite(_fit(views, steps=20)(torch.from_numpy(views))).all()
