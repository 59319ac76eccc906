"""Pictures of suspicious labels and of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from retrieval_app.demo.sheets import find_suspects, suspect_tiles

HEADER = "path,given,label,confidence,suggestion_1,suggestion_confidence_1\n"


def test_suspects_are_the_least_confident_and_ties_go_to_the_surer_suggestion(tmp_path: Path) -> None:
    table = tmp_path / "confidences.csv"
    table.write_text(
        HEADER + "a.jpg,cat,cat,0.900,cat,0.90\nb.jpg,cat,dog,0.001,cat,0.40\nc.jpg,cat,dog,0.001,cat,0.80\n"
    )
    suspects = find_suspects(table, count=2)
    assert [suspect.path.name for suspect in suspects] == ["c.jpg", "b.jpg"]
    assert suspect_tiles(suspects)[0].caption == ("dog (0.001)", "more like: cat (0.80)")


def test_a_run_without_confidences_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no confidences here"):
        find_suspects(tmp_path / "confidences.csv", count=12)
