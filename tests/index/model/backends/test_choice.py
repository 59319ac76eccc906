"""Which runtime runs a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError, MissingDependencyError, ModelFileError
from index.model.backends import choice, measuring
from index.model.backends.choice import Choice, choose_backend
from index.model.backends.measuring import Measured, measure_backends, measure_installed
from index.model.backends.names import USUAL_BACKEND, VARIABLE
from index.model.backends.registry import installed_backends, open_backend
from index.model.embedder import Embedder
from index.model.runtime_report import report_runtimes, tell_runtimes
from index.model.seal import SealedModel, read_sealed
from tests.models import PREPROCESS, write_tiny_model

SIDE = PREPROCESS.crop


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where choices are kept in these tests, which measure for a moment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(measuring, "_SECONDS", 0.01)
    return tmp_path / "cache" / "retrieval-app" / "runtimes.json"


@pytest.fixture
def model(tiny_model: Path) -> SealedModel:
    return read_sealed(tiny_model)


def as_measured(**rates: tuple[float, float]) -> dict[str, Measured]:
    """Runtimes by their images a second and their agreement."""
    return {name: Measured("1", "float32", rate, agreeing) for name, (rate, agreeing) in rates.items()}


@pytest.mark.parametrize("name", sorted(installed_backends()))
def test_a_runtime_is_named_by_the_variable(name: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    opened = Embedder(tiny_model)
    assert opened.runtime.startswith(f"{name} ")
    assert opened.backend == name
    assert opened.agreement > 0.999


def test_onnx_runtime_is_the_default(model: SealedModel, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = choose_backend(model)
    assert (found.name, found.agreement) == (USUAL_BACKEND, 1.0) == ("onnxruntime", 1.0)
    assert not kept.exists()
    monkeypatch.setenv(VARIABLE, "tensorflow")
    with pytest.raises(
        InputError, match="RETRIEVAL_BACKEND take auto, onnxruntime or openvino or tensorrt, got 't"
    ):
        choose_backend(model)


def test_a_missing_runtime_is_named_with_its_extra(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    monkeypatch.setattr(choice, "installed_backends", lambda: {"onnxruntime": "1"})
    with pytest.raises(MissingDependencyError, match=r"needs the package 'openvino'.*\[fast\]"):
        Embedder(tiny_model, backend="openvino")
    assert Embedder(tiny_model, backend="auto").backend == USUAL_BACKEND


def test_measurements_are_kept(model: SealedModel, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure_installed(model)
    assert found.keys() == installed_backends().keys()
    assert next(iter(found)) == USUAL_BACKEND
    assert min(one.images_per_s for one in found.values()) > 0
    monkeypatch.setattr(measuring, "measure_backends", lambda *_: pytest.fail("measured again"))
    assert measure_installed(model) == found
    monkeypatch.setattr(measuring, "measure_backends", lambda *_: as_measured(onnxruntime=(30.0, 1.0)))
    assert list(measure_installed(model, again=True)) == [USUAL_BACKEND]


@pytest.mark.parametrize("damage", ["{", '{"KEY": {"onnxruntime": {"version": 1}}}'])
def test_what_was_kept_and_cannot_be_read_is_measured_again(damage: str, model: SealedModel, kept: Path) -> None:
    measure_installed(model)
    key = next(iter(json.loads(kept.read_text())))
    kept.write_text(damage.replace("KEY", key))
    assert measure_installed(model).keys() == installed_backends().keys()


def test_auto_is_the_fastest_of_those_that_agree(model: SealedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(**rates: tuple[float, float]) -> Choice:
        monkeypatch.setattr(measuring, "measure_installed", lambda *_, **__: as_measured(**rates))
        return choose_backend(model, "auto")

    assert measure(onnxruntime=(10, 1), openvino=(20, 0.987)).name == "openvino"  # int8, the rest in bfloat16
    assert measure(onnxruntime=(30, 1), openvino=(20, 0.995)).name == "onnxruntime"
    assert measure(onnxruntime=(10, 1), openvino=(20, 0.97)).name == "onnxruntime"


def test_a_runtime_that_disagrees_is_refused(model: SealedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(agreeing: float) -> Choice:
        measured = as_measured(onnxruntime=(10, 1), openvino=(20, agreeing))
        monkeypatch.setattr(measuring, "measure_installed", lambda *_, **__: measured)
        return choose_backend(model, "openvino")

    assert name(0.95).agreement == 0.95
    with pytest.raises(InputError, match=r"openvino computes it otherwise than onnxruntime .*of 0\.47 less"):
        name(0.47)
    with pytest.raises(InputError, match="openvino computes it otherwise than onnxruntime"):
        name(float("nan"))


def test_agreement_is_measured_with_the_usual_runtime(model: SealedModel, tmp_path: Path) -> None:
    other = read_sealed(write_tiny_model(tmp_path / "other.onnx", seed=5))
    opened = {
        USUAL_BACKEND: open_backend(model, name=USUAL_BACKEND),
        "openvino": open_backend(model, name="openvino"),
        "another model": open_backend(other, name=USUAL_BACKEND),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (8, SIDE, SIDE, 3), dtype=np.uint8)
    found = measure_backends(opened, pixels, model.path)
    assert found[USUAL_BACKEND].agreement == pytest.approx(1, abs=1e-5)
    assert found["openvino"].agreement > 0.999
    assert found["another model"].agreement < 0.9
    assert min(one.images_per_s for one in found.values()) > 0


def test_embeddings_that_are_not_finite_agree_with_none(
    model: SealedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = {name: open_backend(model, name=name) for name in (USUAL_BACKEND, "openvino")}
    pixels = np.zeros((8, SIDE, SIDE, 3), dtype=np.uint8)
    for name in ("openvino", USUAL_BACKEND):
        run = opened[name].run
        monkeypatch.setattr(opened[name], "run", lambda pixels, run=run: run(pixels) * np.float32("nan"))
        if name != USUAL_BACKEND:
            assert measure_backends(opened, pixels, model.path)[name].agreement == 0
    with pytest.raises(ModelFileError, match="embeddings that are not finite"):
        measure_backends(opened, pixels, model.path)


def test_the_report_names_a_runtime_that_disagrees(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = as_measured(onnxruntime=(10, 1), openvino=(20, 0.47))
    monkeypatch.setattr(measuring, "measure_backends", lambda *_: rates)
    monkeypatch.setenv(VARIABLE, "openvino")
    report = report_runtimes(tiny_model)
    assert report["chosen"]["name"] is None
    lines = tell_runtimes(report)
    assert any("openvino" in line and "differs (cosine 0.4700" in line for line in lines)
    assert any(line.startswith("runs in none: ") and "computes it otherwise" in line for line in lines)
