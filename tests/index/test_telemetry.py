"""Reports of dependencies: off before any loads, unless somebody wants them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from index.model.backends.onnxruntime import import_onnxruntime
from index.telemetry import SWITCHES, switch_off_telemetry

ROOT = Path(__file__).parents[2]
NAMES = [variable for variable, _, _ in SWITCHES]


def run_fresh(code: str, **environment: str) -> str:
    """What a fresh interpreter prints, in whose environment no switch is set but these."""
    unset = {name: value for name, value in os.environ.items() if name not in NAMES}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**unset, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def test_every_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    switch_off_telemetry()
    assert {name: os.environ[name] for name in NAMES} == {variable: value for variable, value, _ in SWITCHES}


def test_what_somebody_has_set_himself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "True")
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "")  # as good as not set
    switch_off_telemetry()
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "True"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.slow
def test_the_installed_packages_obey_the_variables() -> None:
    runtime = Path(import_onnxruntime().__file__).parent / "capi"
    assert any(b"ORT_DISABLE_TELEMETRY" in path.read_bytes() for path in runtime.glob("*.so*"))
    pytest.importorskip("fastapi", reason="needs the extra `ui`")
    asked = (
        "from index.telemetry import switch_off_telemetry; switch_off_telemetry()\n"
        "from gradio import analytics; from huggingface_hub import constants\n"
        "print(analytics.analytics_enabled(), constants.HF_HUB_DISABLE_TELEMETRY,"
        " constants.HF_HUB_DISABLE_UPDATE_CHECK)"
    )
    assert run_fresh(asked).split() == ["False", "True", "True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "from index.model.embedder import Embedder; Embedder(Path(sys.argv[1]))",
        "from index.model.backends.onnxruntime import import_onnxruntime; import_onnxruntime()",
        "from retrieval_app.commands.cli import main; main(['--help'])",
    ],
)
def test_every_way_to_the_runtime_sets_them_first(use: str, tiny_model: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        f"sys.argv.append({str(tiny_model)!r})\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'onnxruntime':\n"
        "            print('LOADS', os.environ['ORT_DISABLE_TELEMETRY'])\n"
        "sys.meta_path.insert(0, Watch())\n"
        f"{use}\n"
        "print('END', os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    said = run_fresh(code)
    assert "END 1" in said
    assert ("LOADS 1" in said) == ("main(" not in use)


def test_events_of_a_runtime_that_was_loaded_before_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    loaded = SimpleNamespace(disable_telemetry_events=lambda: calls.append("stopped"))
    monkeypatch.setitem(sys.modules, "onnxruntime", loaded)  # type: ignore[arg-type]
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    for _ in range(2):
        switch_off_telemetry()
    assert calls == ["stopped"]
