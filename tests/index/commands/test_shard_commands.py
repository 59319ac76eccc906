"""Building on many machines, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval_app.commands.cli import main


def test_where_no_cluster_answers_nothing_is_written(
    image_folder: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["index", "build", str(tiny_model), str(image_folder), "--out", str(tmp_path / "gallery")]
    assert main([*words, "--engine", "ray", "--address", "127.0.0.1:1"]) == 1
    assert "no Ray cluster answers there" in capsys.readouterr().err
    assert not (tmp_path / "gallery").exists()
