"""The notebooks run from the first cell to the last, as they are, in a kernel of their own."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each of its cells of code printed."""
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("TMPDIR", str(folder))
    notebook = nbformat.read(DOCS / name, as_version=4)
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return [
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_the_first_steps_run_to_their_end_and_find_what_they_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = run("first-steps.ipynb", tmp_path, monkeypatch)
    assert any("Recall@1" in text for text in printed)
    assert any("looks like" in text for text in printed)


def test_ten_lines_make_an_app_that_programs_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked, _ = run("gradio-app.ipynb", tmp_path, monkeypatch)
    assert "Running on local URL" in made
    assert len(ast.literal_eval(asked)) == 5
