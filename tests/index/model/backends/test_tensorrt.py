"""TensorRT, where it cannot be had: on machines of the tests."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from index.model.backends.onnxruntime import import_onnxruntime
from index.model.backends.registry import installed_backends, open_backend
from index.model.backends.tensorrt import TENSORRT
from index.model.embedder import Embedder
from index.model.seal import read_sealed
from tests.index.model.backends.test_backend_contract import draw_pixels

MADE_FOR_IT = [TENSORRT, "CUDAExecutionProvider", "CPUExecutionProvider"]


def test_a_runtime_that_is_not_made_for_it_says_so_and_computes_the_same(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert TENSORRT not in import_onnxruntime().get_available_providers()
    assert "tensorrt" not in installed_backends()
    with caplog.at_level(logging.WARNING):
        opened = Embedder(tiny_model, threads=1, backend="tensorrt")
    assert "TensorRT cannot be used: the installed ONNX Runtime is not made for it" in caplog.text
    assert opened.runtime == Embedder(tiny_model, threads=1).runtime
    pixels = draw_pixels(3)
    assert np.array_equal(opened.embed_batch(pixels), Embedder(tiny_model, threads=1).embed_batch(pixels))


def test_its_engines_are_kept_by_the_model_and_made_for_any_batch(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runtime, asked = import_onnxruntime(), list[object]()
    monkeypatch.setattr(runtime, "get_available_providers", lambda: MADE_FOR_IT)
    for module in ("onnxruntime", "tensorrt"):
        monkeypatch.setattr(f"index.model.backends.{module}.load_cuda_libraries", lambda _: None)
    real = runtime.InferenceSession

    def fail(data: bytes, options: object, providers: list[object], **others: object) -> object:
        if providers[-1:] != providers:
            asked.append(providers[0])
            raise RuntimeError("CUDA failure 100: no device ; GPU=-1")
        return real(data, options, providers, **others)

    monkeypatch.setattr(runtime, "InferenceSession", fail)
    model = read_sealed(tiny_model)
    with caplog.at_level(logging.WARNING):
        assert open_backend(model, threads=1, name="tensorrt").name == "onnxruntime"
    assert "TensorRT cannot be used: CUDA failure 100: no device; models run in ONNX Runtime" in caplog.text
    name, options = asked[0]  # type: ignore[misc]
    assert name == TENSORRT
    assert Path(options["trt_engine_cache_path"]) == tmp_path / "retrieval-app" / "tensorrt" / model.sha256
    assert options["trt_profile_min_shapes"].startswith("images:1x")
