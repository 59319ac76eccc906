"""What is told of the runtimes of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.model.backends import measuring
from index.model.backends.measuring import Measured
from index.model.backends.names import USUAL_BACKEND, VARIABLE
from index.model.runtime_report import report_runtimes, tell_runtimes


def test_of_a_runtime_that_computes_another_model_all_is_told_and_why_it_is_refused(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rates = {USUAL_BACKEND: Measured("1", "float32", 10, 1.0), "openvino": Measured("1", "int8", 20, 0.47)}
    monkeypatch.setattr(measuring, "measure_backends", lambda *_: rates)
    monkeypatch.setenv(VARIABLE, "openvino")
    report = report_runtimes(tiny_model)
    assert report["chosen"]["name"] is None
    lines = tell_runtimes(report)
    assert any("openvino" in line and "differs (cosine 0.4700" in line for line in lines)
    assert any(line.startswith("runs in none: ") and "computes it otherwise" in line for line in lines)
    monkeypatch.setenv(VARIABLE, "tensorflow")
    with pytest.raises(InputError, match="got 'tensorflow'"):
        report_runtimes(tiny_model)
