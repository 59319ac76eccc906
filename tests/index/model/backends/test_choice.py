"""Which runtime runs a model."""

import json
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError, MissingDependencyError, ModelFileError
from index.model.backends import registry
from index.model.backends.backend import USUAL_BACKEND, VARIABLE
from index.model.backends.registry import (
    Compared,
    choose_backend,
    compare,
    compare_backend,
    installed_backends,
    open_backend,
)
from index.model.checksum import ModelFile, read_model_file
from index.model.embedder import Embedder
from tests.models import PREPROCESS, write_tiny_model

SIDE = PREPROCESS.crop


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "cache" / "retrieval-app" / "runtimes.json"


@pytest.fixture
def model(tiny_model: Path) -> ModelFile:
    return read_model_file(tiny_model)


def let_agree(monkeypatch: pytest.MonkeyPatch, **agreements: float) -> None:
    monkeypatch.setattr(registry, "compare_backend", lambda model, name: Compared("1", "float32", agreements[name]))


@pytest.mark.parametrize("name", sorted(installed_backends()))
def test_a_runtime_is_named_by_the_variable(name: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    opened = Embedder(tiny_model)
    assert opened.runtime.startswith(f"{name} ")
    assert opened.backend == name
    assert opened.agreement > 0.999


def test_onnx_runtime_is_the_default(model: ModelFile, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(model) == (USUAL_BACKEND, 1.0) == ("onnxruntime", 1.0)
    assert not kept.exists()
    monkeypatch.setenv(VARIABLE, "tensorflow")
    with pytest.raises(InputError, match="RETRIEVAL_BACKEND take auto, onnxruntime or openvino, got 'tensorflow'"):
        choose_backend(model)


def test_a_missing_runtime_is_named_with_its_extra(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    monkeypatch.setattr(registry, "installed_backends", lambda: {"onnxruntime": "1"})
    with pytest.raises(MissingDependencyError, match=r"needs the package 'openvino'.*\[fast\]"):
        Embedder(tiny_model, backend="openvino")
    assert Embedder(tiny_model, backend="auto").backend == USUAL_BACKEND


def test_comparisons_are_kept(model: ModelFile, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: compare_backend(model, name) for name in installed_backends()}
    assert all(one is not None and one.agreement > 0.999 for one in found.values())
    monkeypatch.setattr(registry, "open_backend", lambda *_, **__: pytest.fail("compared again"))
    assert {name: compare_backend(model, name) for name in installed_backends()} == found


@pytest.mark.parametrize("damage", ["{", '{"KEY": {"version": 1}}'])
def test_what_was_kept_and_cannot_be_read_is_compared_again(damage: str, model: ModelFile, kept: Path) -> None:
    found = compare_backend(model, "openvino")
    kept.write_text(damage.replace("KEY", next(iter(json.loads(kept.read_text())))))
    assert compare_backend(model, "openvino") == found


def test_auto_is_the_first_choice_of_those_that_agree(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    let_agree(monkeypatch, onnxruntime=1, openvino=0.987)  # int8, the rest in bfloat16
    assert choose_backend(model, "auto") == ("openvino", 0.987)
    let_agree(monkeypatch, onnxruntime=1, openvino=0.97)
    assert choose_backend(model, "auto")[0] == "onnxruntime"


def test_a_runtime_that_disagrees_is_refused(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    let_agree(monkeypatch, openvino=0.95)
    assert choose_backend(model, "openvino")[1] == 0.95
    let_agree(monkeypatch, openvino=0.47)
    with pytest.raises(InputError, match=r"openvino computes it otherwise than onnxruntime .*of 0\.47 less"):
        choose_backend(model, "openvino")
    let_agree(monkeypatch, openvino=float("nan"))
    with pytest.raises(InputError, match="openvino computes it otherwise than onnxruntime"):
        choose_backend(model, "openvino")


def test_agreement_is_that_of_the_embeddings(model: ModelFile, tmp_path: Path) -> None:
    other = read_model_file(write_tiny_model(tmp_path / "other.onnx", seed=5))
    pixels = np.random.default_rng(0).integers(0, 256, (8, SIDE, SIDE, 3), dtype=np.uint8)
    usual = open_backend(model)
    expected = usual.run(pixels)
    assert compare(usual, pixels, expected).agreement == pytest.approx(1, abs=1e-5)
    assert compare(open_backend(model, name="openvino"), pixels, expected).agreement > 0.999
    assert compare(open_backend(other), pixels, expected).agreement < 0.9


def test_embeddings_that_are_not_finite_agree_with_none(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = {name: open_backend(model, name=name) for name in (USUAL_BACKEND, "openvino")}
    monkeypatch.setattr(registry, "open_backend", lambda model, name=USUAL_BACKEND: opened[name])
    for name in ("openvino", USUAL_BACKEND):
        run = opened[name].run
        monkeypatch.setattr(opened[name], "run", lambda pixels, run=run: run(pixels) * np.float32("nan"))
        if name != USUAL_BACKEND:
            assert compare_backend(model, name).agreement == 0
    with pytest.raises(ModelFileError, match="embeddings that are not finite"):
        compare_backend(model, USUAL_BACKEND)


def test_another_gpu_is_compared_again(model: ModelFile, kept: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_CARDS", tmp_path / "gpus")
    compare_backend(model, USUAL_BACKEND)
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA T4\nIRQ:   \t 3\n")
    compare_backend(model, USUAL_BACKEND)
    without, with_card = json.loads(kept.read_text())
    assert set(with_card.split("; ")) - set(without.split("; ")) == {"NVIDIA T4"}
