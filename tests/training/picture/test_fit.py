"""The second output on given features: it comes to look at what copies keep."""

from __future__ import annotations

import numpy as np
import torch

from training.picture.fit import PictureData, fit_picture_head
from training.picture.head import PictureHead

KINDS, OF_KIND, COPIES, WIDTH = 6, 12, 4, 32
STEPS = 200


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


def _fit(views: np.ndarray, *, groups: np.ndarray | None = None, seed: int = 0) -> PictureHead:
    groups = np.arange(len(views)) if groups is None else groups
    return fit_picture_head(PictureData(views, groups), picture_dim=16, seed=seed, steps=STEPS)


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
    first, again, other = (_fit(views, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["last.weight"], other["last.weight"])


def test_images_that_show_the_same_picture_are_not_driven_apart() -> None:
    views = _features()
    views[1] = views[0]  # the picture lies there twice
    apart = np.arange(len(views))
    known = np.where(apart == 1, 0, apart)
    found = [_fit(views, groups=groups)(torch.from_numpy(views[0])).numpy() for groups in (apart, known)]
    near = [float((rows[1:] @ rows[0]).mean()) for rows in found]
    assert near[1] > near[0], "copies come nearer where their twin is none of the others"


def test_a_feature_that_never_differs_gives_finite_rows() -> None:
    views = _features()
    views[:, :, 0] = 1
    assert torch.isfinite(_fit(views)(torch.from_numpy(views))).all()
