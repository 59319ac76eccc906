"""Pictures of what methods find, from cells that were really run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.cells import GridFolder
from benchmarks.experiments import Experiment, Setting, table_3
from benchmarks.grid import SHOWN_NEIGHBOURS, run_cell
from benchmarks.pictures import draw_retrieval_grid
from benchmarks.plots import plot_experiment
from benchmarks.reports import summarise_experiment
from index.errors import ImageError, InputError
from retrieval_app.sheets import GAP, QUERY, RIGHT, TILE, WRONG
from tests.conftest import draw_image

COLOURS = {"blue": (20, 40, 220), "green": (20, 200, 40), "red": (220, 30, 20)}
PER_CLASS = 4
STEP = (TILE + GAP, TILE + 2 * 18 + GAP)  # of tiles with captions of two lines


def _write_features(folder: Path, images: Path) -> None:
    """Features of drawn images as a dataset leaves them: their labels as one-hot vectors, all but alike within one.

    The last image of `red` has the features of `blue`.
    """
    generator, labels, paths = np.random.default_rng(0), [], []
    for label, colour in COLOURS.items():
        for number in range(PER_CLASS):
            paths.append(images / f"{label}-{number}.png")
            draw_image(colour, seed=number).save(paths[-1])
            labels.append(label)
    one_hot = np.eye(len(COLOURS), 8, dtype=np.float32).repeat(PER_CLASS, axis=0)
    one_hot[-1] = one_hot[0]
    features = one_hot + generator.normal(0, 1e-3, one_hot.shape).astype(np.float32)
    folder.mkdir(parents=True)
    np.save(folder / "train.npy", features)
    np.save(folder / "test.npy", features)
    document = {
        "name": "drawn", "train_labels": labels, "test_labels": labels, "test_paths": list(map(str, paths)),
        "is_gallery": None, "ks": [1, 2],
    }  # fmt: skip
    (folder / "set.json").write_text(json.dumps(document))


@pytest.fixture
def grid(tmp_path: Path) -> tuple[GridFolder, Experiment]:
    """A folder with the finished cells of two untrained methods, and their experiment."""
    folder = GridFolder(tmp_path / "grid")
    _write_features(folder.features("drawn"), tmp_path)
    experiment = table_3(Setting("drawn", "clean", 2, (0,)), ("raw", "pca"))
    for cell in experiment.cells:
        run_cell(folder, cell)
    return folder, experiment


def _read_borders(sheet: Path) -> list[list[tuple[int, ...]]]:
    """The colour in the corner of every tile, row by row."""
    with Image.open(sheet) as image:
        pixels = image.convert("RGB")
    columns, rows = (pixels.width - GAP) // STEP[0], (pixels.height - 2 * GAP - 24) // STEP[1]
    return [
        [pixels.getpixel((GAP + x * STEP[0] + 1, 2 * GAP + 24 + y * STEP[1] + 1)) for x in range(columns)]  # type: ignore[misc]
        for y in range(rows)
    ]


def test_every_query_has_a_row_a_method_and_borders_say_which_labels_agree(
    grid: tuple[GridFolder, Experiment], tmp_path: Path
) -> None:
    folder, experiment = grid
    out = tmp_path / "sheet.png"
    draw_retrieval_grid(folder, experiment, out, methods=["pca", "raw"], queries=2)
    with Image.open(out) as image:
        assert image.size == (GAP + 5 * STEP[0], 2 * GAP + 24 + 4 * STEP[1])
    rows = _read_borders(out)
    assert [row[0] for row in rows] == [QUERY] * 4
    # the first query is blue: three other blues and a red that looks blue; the last is that red, near blue alone
    for row in rows[:2]:
        assert sorted(row[1:]) == sorted([RIGHT] * 3 + [WRONG])
    for row in rows[2:]:
        assert row[1:] == [WRONG] * SHOWN_NEIGHBOURS


def test_tiles_show_the_images_that_the_record_names(grid: tuple[GridFolder, Experiment], tmp_path: Path) -> None:
    folder, experiment = grid
    out = tmp_path / "sheet.png"
    draw_retrieval_grid(folder, experiment, out, methods=["raw"], queries=1)
    neighbours = folder.read(experiment.rows[0].cells[0])["neighbours"]["0"]
    names = list(COLOURS)
    with Image.open(out) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.int64)
    for place, row in enumerate([0, *neighbours]):
        left, top = GAP + place * STEP[0], 2 * GAP + 24
        centre = pixels[top + 50 : top + 110, left + 50 : left + 110].mean((0, 1))
        distances = {name: np.abs(centre - COLOURS[name]).sum() for name in names}
        assert min(distances, key=lambda name: distances[name]) == names[row // PER_CLASS]


def test_more_queries_than_were_kept_are_all_of_them(grid: tuple[GridFolder, Experiment], tmp_path: Path) -> None:
    folder, experiment = grid
    draw_retrieval_grid(folder, experiment, tmp_path / "sheet.png", methods=["raw"], queries=99)
    kept = folder.read(experiment.rows[0].cells[0])["neighbours"]
    assert len(_read_borders(tmp_path / "sheet.png")) == len(kept)


def test_a_method_that_the_experiment_lacks_is_named_with_those_it_has(
    grid: tuple[GridFolder, Experiment], tmp_path: Path
) -> None:
    folder, experiment = grid
    with pytest.raises(InputError, match=r"no row named \['spa'\]; it has raw, pca"):
        draw_retrieval_grid(folder, experiment, tmp_path / "sheet.png", methods=["raw", "spa"])
    with pytest.raises(InputError, match="raw, pca"):
        draw_retrieval_grid(folder, experiment, tmp_path / "sheet.png", methods=[])


def test_cells_without_neighbours_and_vanished_images_leave_no_picture(
    grid: tuple[GridFolder, Experiment], tmp_path: Path
) -> None:
    folder, experiment = grid
    (tmp_path / "blue-0.png").unlink()
    with pytest.raises(ImageError, match=r"blue-0\.png"):
        draw_retrieval_grid(folder, experiment, tmp_path / "sheet.png", methods=["raw"])
    path = folder.cell(experiment.cells[0])
    path.write_text(json.dumps({**json.loads(path.read_text()), "neighbours": {}}))
    with pytest.raises(InputError, match="no neighbours"):
        draw_retrieval_grid(folder, experiment, tmp_path / "sheet.png", methods=["raw"])
    assert not (tmp_path / "sheet.png").exists()


def test_the_summary_of_finished_cells_is_what_plots_take(
    grid: tuple[GridFolder, Experiment], tmp_path: Path
) -> None:
    summary = summarise_experiment(*grid)
    figure = plot_experiment(summary, tmp_path / "it.png")
    legend = [text.get_text().partition(":")[0] for text in figure.legends[0].get_texts()]
    assert sorted(legend) == ["pca", "raw"]
    with Image.open(tmp_path / "it.png") as image:
        assert image.size == (900, 600)
