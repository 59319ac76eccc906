"""Pictures of suspicious labels and of results."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from index.errors import InputError
from index.sources.items import Place
from retrieval_app.demo.sheets import RIGHT, WRONG, Tile, draw_sheet, find_suspects, suspect_tiles
from tests.conftest import draw_image

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


def test_a_sheet_holds_every_tile_with_its_border(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    draw_image((10, 20, 200), seed=0).save(photo)
    place = Place(photo, "photo.png")
    tiles = [Tile(place, ("one",), RIGHT), Tile(place, ("two",), WRONG), Tile(place, ("a label " * 9,), WRONG)]
    draw_sheet(tiles, tmp_path / "sheet.png", columns=2, title="Three")
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = {colour: count for count, colour in sheet.convert("RGB").getcolors(1 << 24) or []}
    border_pixels = 4 * 4 * 156  # four pixels wide around 160
    assert colours[RIGHT] == border_pixels
    assert colours[WRONG] == 2 * border_pixels
