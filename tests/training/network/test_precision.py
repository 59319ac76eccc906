"""Precision: one of the two is measured to be faster, and nothing of the measurement stays."""

from __future__ import annotations

import pytest
import torch

from tests.training.network.test_model import make_model, some_images
from training.network import precision
from training.network.precision import choose_precision


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that computes bfloat16."""
    monkeypatch.setattr(precision, "resolve_precision", lambda *_: torch.bfloat16)


def test_hardware_without_bfloat16_is_not_asked(monkeypatch) -> None:
    monkeypatch.setattr(precision, "resolve_precision", lambda *_: torch.float32)
    monkeypatch.setattr(precision, "_time_a_step", lambda *_, **__: pytest.fail("it would take minutes"))
    assert choose_precision(make_model(), some_images()) == "float32"


def test_a_measurement_names_a_precision_and_leaves_the_model_as_it_was(native: None) -> None:
    model = make_model(last=2)
    before = {name: tensor.clone() for name, tensor in model.moving().items()}
    assert choose_precision(model, some_images()) in ("float32", "bfloat16")
    assert model.precision == torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.moving().items())


def test_the_faster_one_is_chosen(native: None, monkeypatch) -> None:
    seconds = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(precision, "_time_a_step", lambda model, images, *, dtype: seconds[dtype])
    assert choose_precision(make_model(), some_images()) == "bfloat16"
    seconds[torch.float32] = 0.5
    assert choose_precision(make_model(), some_images()) == "float32"


def test_in_half_precision_embeddings_are_float32_and_nearly_the_same() -> None:
    model, images = make_model("squeezenet1_1"), some_images()
    with torch.no_grad():
        full = model(images)
        model.precision = torch.bfloat16
        half = model(images)
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    assert torch.nn.functional.cosine_similarity(half, full).min() > 0.95
