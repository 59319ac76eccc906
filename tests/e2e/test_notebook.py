"""The notebook runs from its first cell to its last, as it is, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-steps.ipynb"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    return notebook


def test_the_notebook_runs_to_its_end_and_finds_what_it_promises(executed: nbformat.NotebookNode) -> None:
    printed = [
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs)
        for cell in executed.cells
        if cell.cell_type == "code"
    ]
    assert any("Recall@1" in text for text in printed)
    assert any("looks like" in text for text in printed)


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")
