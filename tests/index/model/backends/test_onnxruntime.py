"""An ONNX Runtime made for GPUs runs models on the CPU where there is no GPU, and says why."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.errors import ModelFileError
from index.model.backends.onnxruntime import OnnxRuntimeBackend, import_onnxruntime, load_cuda_libraries
from index.model.backends.openvino import import_openvino
from index.model.backends.registry import open_backend
from index.model.checksum import ModelFile, read_model_file
from tests.index.model.backends.test_backend_contract import draw_pixels
from tests.models import tiny_contract, write_tiny_model

MADE_FOR_GPUS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime that is made for GPUs, and a driver that is not installed."""
    monkeypatch.setattr(import_onnxruntime(), "get_available_providers", lambda: MADE_FOR_GPUS)
    monkeypatch.setattr("index.model.backends.onnxruntime._DRIVER", "libnone.so.1")
    load_cuda_libraries.cache_clear()
    yield
    load_cuda_libraries.cache_clear()


def test_without_a_driver_it_computes_the_same_on_the_cpu_and_says_why(
    no_gpu: None, tiny_model: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        backend = open_backend(read_model_file(tiny_model), threads=1)
    assert not backend.on_gpu
    assert "no NVIDIA driver is installed (libnone.so.1 is missing): models run on the CPU" in caplog.text
    assert capfd.readouterr().out == ""
    assert np.allclose(np.linalg.norm(backend.run(draw_pixels(2)), axis=1), 1, atol=1e-5)


def test_a_broken_model_blames_no_gpu(no_gpu: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelFileError, match=r"none\.onnx: not a usable ONNX model"):
        OnnxRuntimeBackend(ModelFile(tmp_path / "none.onnx", b"nothing", sha256=""), threads=1)
    assert not caplog.records


@pytest.mark.slow
def test_what_would_report_its_import_is_never_loaded() -> None:
    code = (
        "import sys; from index.model.backends.openvino import import_openvino; import_openvino().Core(); "
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_it_computes_in_bfloat16_where_the_model_and_the_processor_have_it(precision: str, tmp_path: Path) -> None:
    contract = replace(tiny_contract(), precision=precision).to_json()
    model = read_model_file(write_tiny_model(tmp_path / "model.onnx", contract=contract))
    backend = open_backend(model, threads=1, name="openvino")
    has_half = "BF16" in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert backend.precision == ("bfloat16" if precision == "bfloat16" and has_half else "float32")
