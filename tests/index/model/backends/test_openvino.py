"""OpenVINO, beside what every runtime promises."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from index.model.backends.openvino import import_openvino
from index.model.backends.registry import open_backend
from index.model.seal import read_sealed
from tests.models import tiny_contract, write_tiny_model


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
    model = read_sealed(write_tiny_model(tmp_path / "model.onnx", contract=contract))
    backend = open_backend(model, threads=1, name="openvino")
    has_half = "BF16" in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert backend.precision == ("bfloat16" if precision == "bfloat16" and has_half else "float32")
