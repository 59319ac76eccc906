"""Which runtime runs a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError
from index.model.backends import choice
from index.model.backends.choice import agreement, choose_backend, measure_backends
from index.model.backends.registry import BACKENDS, USUAL_BACKEND, open_backend
from index.model.embedder import Embedder
from index.model.seal import SealedModel, read_sealed
from tests.models import PREPROCESS, tiny_contract, write_tiny_model

SIDE = PREPROCESS.crop


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where choices are kept in these tests, which measure for a moment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "_SECONDS", 0.01)
    return tmp_path / "cache" / "retrieval-app" / "runtimes.json"


@pytest.fixture
def model(tiny_model: Path) -> SealedModel:
    return read_sealed(tiny_model)


def test_without_a_word_it_is_onnx_runtime(
    model: SealedModel, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    assert choose_backend(model) == USUAL_BACKEND == "onnxruntime"
    assert not kept.exists()


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_runtime_is_named_by_the_variable(name: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, name)
    assert Embedder(tiny_model).runtime.startswith(f"{name} ")


def test_another_name_is_refused(model: SealedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, "tensorflow")
    with pytest.raises(
        InputError, match="RETRIEVAL_BACKEND must be auto or one of onnxruntime, openvino, got 'tens"
    ):
        choose_backend(model)


def test_the_fastest_is_measured_once(model: SealedModel, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setenv(choice.VARIABLE, "auto")
    monkeypatch.setattr(choice, "measure_backends", lambda *_: {"onnxruntime": 10.0, "openvino": 20.0})
    assert choose_backend(model) == "openvino"
    assert list(json.loads(kept.read_text()).values()) == ["openvino"]
    monkeypatch.setattr(choice, "measure_backends", lambda *_: pytest.fail("measured again"))
    assert choose_backend(model) == "openvino"
    kept.write_text("{")
    monkeypatch.setattr(choice, "measure_backends", lambda *_: {"onnxruntime": 30.0, "openvino": 20.0})
    assert choose_backend(model) == "onnxruntime"


def test_int8_is_measured_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    contract = replace(tiny_contract(), precision="int8").to_json()
    path = write_tiny_model(tmp_path / "int8.onnx", contract=contract)
    monkeypatch.setenv(choice.VARIABLE, "auto")
    assert choose_backend(read_sealed(path)) == "onnxruntime"
    assert not kept.exists()


def test_what_gives_other_embeddings_is_not_used(model: SealedModel, tmp_path: Path) -> None:
    other = read_sealed(write_tiny_model(tmp_path / "other.onnx", seed=5))
    opened = {
        USUAL_BACKEND: open_backend(model, name=USUAL_BACKEND),
        "openvino": open_backend(model, name="openvino"),
        "another model": open_backend(other, name=USUAL_BACKEND),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (8, SIDE, SIDE, 3), dtype=np.uint8)
    rates = measure_backends(opened, pixels)
    assert rates.keys() == {USUAL_BACKEND, "openvino"}
    assert min(rates.values()) > 0


def test_agreement_is_of_what_embeddings_do_not_share() -> None:
    random = np.random.default_rng(0)
    usual = random.normal(size=(20, 4)).astype(np.float32)
    middle = np.full(4, 100, dtype=np.float32)
    assert agreement(usual + middle, usual + middle) == pytest.approx(1, abs=1e-4)
    assert abs(agreement(random.normal(size=(20, 4)).astype(np.float32) + middle, usual + middle)) < 0.6
