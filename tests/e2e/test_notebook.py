"""The notebooks run from the first cell to the last, as they are."""

import ast
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from training.options import resolve as options

DOCS = Path(__file__).parents[2] / "docs"


def test_the_first_steps_run_to_their_end_and_find_what_they_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, and with few steps of training."""
    monkeypatch.setattr(options, "DEFAULT", {**options.DEFAULT, "head_steps": 20})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = nbformat.read(DOCS / "first-steps.ipynb", as_version=4).cells
    (tmp_path / "steps.py").write_text("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
    made = runpy.run_path(str(tmp_path / "steps.py"))
    assert made["quality"].scores.recall[1] > 0.5
    assert "looks like" in capsys.readouterr().out
    assert not made["WORK"].exists()


def test_ten_lines_make_an_app_that_programs_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own."""
    for name, value in {"PYTHONPATH": DOCS.parent, "IPYTHONDIR": tmp_path / "ipython", "TMPDIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    notebook = nbformat.read(DOCS / "gradio-app.ipynb", as_version=4)
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    made, asked, _ = (
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    )
    assert "Running on local URL" in made
    assert len(ast.literal_eval(asked)) == 5
