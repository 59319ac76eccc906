"""Lambert's W against its definition, scipy, and Newton's method in fifty digits around the branch point."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from tests.deep import tries
from tests.oracles import confidence_losses as oracle
from training.losses.lambert import lambert_w


def w_of(x: float) -> float:
    return float(lambert_w(torch.tensor(x, dtype=torch.float64)))


@given(exponent=st.floats(-12, 300), near=st.floats(-17, -1), sign=st.sampled_from([1, -1]))
@pytest.mark.deep
@settings(max_examples=tries(25, deep=100), deadline=None)
def test_w_is_the_number_that_times_its_exponential_is_x_down_to_the_branch_point(exponent, near, sign) -> None:
    x = sign * 10.0 ** (min(exponent, math.log10(0.36)) if sign < 0 else exponent)
    assert w_of(x) == pytest.approx(oracle.lambert_w(x), rel=1e-13, abs=0)
    x = -1 / math.e + 10.0**near  # some of these are the branch point itself
    assert w_of(x) == pytest.approx(oracle.lambert_w(x), rel=1e-8, abs=0)


def test_w_at_its_landmarks() -> None:
    assert w_of(0.0) == 0.0
    assert w_of(-1 / math.e) == -1.0
    assert w_of(math.e) == pytest.approx(1, rel=1e-15)
    assert w_of(math.inf) == math.inf
    assert w_of(5e-324) == 5e-324
    assert math.isfinite(w_of(1.7e308))
    # what rounding puts below the branch point counts as it
    assert float(lambert_w(torch.tensor(-1 / math.e, dtype=torch.float32))) == w_of(-0.368) == -1.0
    assert math.isnan(w_of(math.nan))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_w_keeps_shape_and_type_and_carries_no_gradient(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, 1e30], [-0.2, 0.0]], dtype=dtype, requires_grad=True)
    w = lambert_w(x)
    assert not w.requires_grad
    expected = torch.from_numpy(lambertw(x.detach().double().numpy()).real).to(dtype)
    torch.testing.assert_close(w, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
