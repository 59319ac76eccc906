"""Pictures of experiments: everything is on them, in its place, at the size that a README shows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from benchmarks.experiments import ABLATIONS, TABLES, Experiment, Row, Setting, table_3
from benchmarks.plots import (
    RIGHT_LABELS,
    WRONG_LABELS,
    plot_bars,
    plot_confidences,
    plot_experiment,
    plot_noise,
    plot_recall_curves,
)
from training.loss_config import UNTRAINED_METHODS

METHODS = ("spa", "proxy-anchor", "proxy-anchor-filtered", "procsim", "raw", "pca")
SETTING = Setting("clothing-disjoint", "uniform:0.3", 64, (0, 1, 2))


def _summarise(experiment: Experiment, *, ks: Iterable[int] = (1, 2, 4, 8)) -> dict[str, Any]:
    """A summary as reports write it, of made-up scores: Recall@1 is 50 and as many points as the row's number."""
    one_seed = len(experiment.setting.seeds) == 1

    def score(row: Row, number: int, k: int) -> dict[str, float]:
        alone = one_seed or row.name in UNTRAINED_METHODS
        return {"mean": 50.0 + number + np.log2(k), "deviation": 0.0 if alone else 0.5}

    rows = [
        {"name": row.name, "at": list(row.at), "recall": {str(k): score(row, number, k) for k in ks}, "nmi": None}
        for number, row in enumerate(experiment.rows)
    ]
    setting = experiment.setting
    return {
        "name": experiment.name, "title": experiment.title, "dataset": setting.dataset, "noise": setting.noise,
        "width": setting.width, "seeds": list(setting.seeds), "axes": list(experiment.axes), "rows": rows,
    }  # fmt: skip


def _texts(figure: Figure) -> list[str]:
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def _drawn_texts(figure: Figure) -> list[Text]:
    """All but empty ones and those of ticks beyond an axis's ends, which are made but not drawn."""
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    texts += [text for legend in figure.legends for text in (legend.get_title(), *legend.get_texts())]
    return [text for text in texts if text.get_text()]


def _error_bars(figure: Figure) -> dict[str, ErrorbarContainer]:
    return {str(c.get_label()): c for c in figure.axes[0].containers if isinstance(c, ErrorbarContainer)}


@pytest.mark.parametrize("name", sorted({**ABLATIONS, **TABLES}))
def test_every_experiment_becomes_a_png_900_pixels_wide_that_names_its_rows_and_axes(
    name: str, tmp_path: Path
) -> None:
    experiment = {**ABLATIONS, **TABLES}[name](SETTING)
    figure = plot_experiment(_summarise(experiment), tmp_path / "it.png")
    with Image.open(tmp_path / "it.png") as image:
        assert image.format == "PNG"
        assert (image.width, image.height) == (900, round(figure.get_figheight() * 100))
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10
    texts = _texts(figure)
    assert "Recall@1 (%)" in texts
    if len(experiment.axes) < 2:
        assert {row.name for row in experiment.rows} <= set(texts)
    assert all(any(axis in text for text in texts) for axis in experiment.axes)
    ticks = {f"{value:g}" for row in experiment.rows for value in row.at}
    assert ticks <= set(texts)


def test_no_text_leaves_the_picture_or_covers_another_even_with_every_method(tmp_path: Path) -> None:
    methods = (*METHODS, "proxy-nca", "proxy-nca-filtered", "multi-similarity", "adaptive-proxy-anchor", "superloss",
               "pca-whitened")  # fmt: skip
    summary = _summarise(table_3(SETTING, methods))
    for figure in (plot_recall_curves(summary, tmp_path / "curves.png"), plot_noise([summary], tmp_path / "noise.png"),
                   plot_bars(summary, tmp_path / "bars.png")):  # fmt: skip
        boxes = {text.get_text(): text.get_window_extent() for text in _drawn_texts(figure)}
        assert set(methods) <= {text.partition(":")[0] for text in boxes}
        outside = [text for text, box in boxes.items() if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.x1]
        assert outside + [text for text, box in boxes.items() if box.y1 > figure.bbox.y1] == []
        assert [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])] == []


def test_curves_pass_through_the_scores_with_error_bars_and_the_legend_gives_recall_at_1(tmp_path: Path) -> None:
    figure = plot_experiment(_summarise(table_3(SETTING, METHODS)), tmp_path / "it.png")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [f"{name}: {55 - place}.00" for place, name in enumerate(reversed(METHODS))]
    line, _, (bars,) = _error_bars(figure)["spa: 50.00"].lines
    np.testing.assert_array_equal(np.asarray(line.get_xydata()), [(1, 50), (2, 51), (4, 52), (8, 53)])
    np.testing.assert_allclose(bars.get_segments()[0][:, 1], [49.5, 50.5])
    assert figure.axes[0].get_xscale() == "log"


def test_untrained_methods_are_dashed_and_hollow_and_variants_of_a_method_share_its_colour(tmp_path: Path) -> None:
    figure = plot_experiment(_summarise(table_3(SETTING, METHODS)), tmp_path / "it.png")
    lines = {label.partition(":")[0]: bars.lines[0] for label, bars in _error_bars(figure).items()}
    for name in METHODS:
        assert (lines[name].get_linestyle() == "--") == (name in UNTRAINED_METHODS or name.endswith("-filtered"))
        assert (to_hex(lines[name].get_markerfacecolor()) == "#ffffff") == (name in UNTRAINED_METHODS)
    one, variant = lines["proxy-anchor"], lines["proxy-anchor-filtered"]
    assert one.get_color() == variant.get_color()
    assert one.get_marker() != variant.get_marker()
    others = [lines[name].get_color() for name in METHODS if name != "proxy-anchor-filtered"]
    assert len(set(others)) == len(others)


def test_an_axis_is_logarithmic_only_where_its_values_span_more_than_16_times(tmp_path: Path) -> None:
    scales = {
        name: plot_experiment(_summarise(ABLATIONS[name](SETTING)), tmp_path / f"{name}.png").axes[0].get_xscale()
        for name in ("batch", "width", "margin")
    }
    assert scales == {"batch": "linear", "width": "log", "margin": "log"}


def test_a_heat_map_has_its_first_axis_down_and_frames_the_best_cell(tmp_path: Path) -> None:
    summary = _summarise(ABLATIONS["lambda-beta"](SETTING))
    best = summary["rows"][6]  # lambda 0.1, beta 150
    best["recall"]["1"]["mean"] = 99.0
    axes = plot_experiment(summary, tmp_path / "it.png").axes[0]
    (image,) = axes.findobj(AxesImage)
    assert isinstance(image, AxesImage)
    assert np.asarray(image.get_array())[1].tolist() == [54, 55, 99, 57]
    (frame,) = axes.patches
    assert isinstance(frame, Rectangle)
    assert frame.get_xy() == (1.5, 0.5)
    assert [t.get_position() for t in axes.texts if t.get_text().startswith("99.00")] == [(2, 1)]
    assert axes.get_ylabel() == "λ (lambda)"


def test_equal_scores_of_one_seed_make_pictures_without_deviations(tmp_path: Path) -> None:
    setting = Setting("clothing-disjoint", "clean", 64, (0,))
    for name in ("alpha-delta", "confidence", "width"):
        summary = _summarise(ABLATIONS[name](setting), ks=(1,))
        for row in summary["rows"]:
            row["recall"]["1"]["mean"] = 70.0
        texts = _texts(plot_experiment(summary, tmp_path / f"{name}.png"))
        assert any("1 seed" in text for text in texts)
        assert not any("±" in text for text in texts)


def test_scores_at_one_k_are_dots_beside_their_names(tmp_path: Path) -> None:
    figure = plot_experiment(_summarise(table_3(SETTING, METHODS), ks=(1,)), tmp_path / "it.png")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(METHODS)
    assert [text.get_text() for text in axes.texts] == [f"{50 + number}.00" for number in range(len(METHODS))]


def test_noise_groups_stand_clean_first_and_untrained_methods_cross_all_of_them(tmp_path: Path) -> None:
    summaries = [
        _summarise(table_3(Setting("tiny-imagenet", noise, 64, (0, 1, 2)), METHODS))
        for noise in ("uniform:0.3", "clean", "uniform:0.5")
    ]
    figure = plot_noise(summaries, tmp_path / "it.png")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "uniform:0.3", "uniform:0.5"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set(METHODS)
    across = {line.get_label(): np.asarray(line.get_xdata()) for line in axes.lines}
    assert (across["raw"].min(), across["raw"].max()) == (-0.5, 2.5)
    trained = [np.asarray(bars.lines[0].get_xdata(), dtype=float) for bars in _error_bars(figure).values()]
    assert len(trained) == 4
    places = np.concatenate(trained)
    assert len(np.unique(places)) == len(places)  # none hides another
    assert all(np.array_equal(xs.round(), [0, 1, 2]) for xs in trained)


@pytest.mark.parametrize("wrong", [0, 40])
def test_confidences_are_two_histograms_under_the_smoothing_function(wrong: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    right_values, wrong_values = generator.beta(5, 2, 200), generator.beta(1, 9, wrong)
    figure = plot_confidences(right_values, wrong_values, tmp_path / "it.png", lambda_=0.1, beta=100.0)
    counts, weights = figure.axes
    assert counts.get_yscale() == "log"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["right labels (n = 200)", f"wrong labels (n = {wrong})", "w(c), λ = 0.1, β = 100"]
    curve = dict(np.asarray(weights.lines[0].get_xydata()).round(6).tolist())
    assert curve[0.1] == 0.5
    assert curve[0.2] == pytest.approx(1 / (1 + np.exp(-10)), abs=1e-5)
    colours = [to_hex(patch.get_edgecolor()) for patch in counts.patches if not patch.get_fill()]
    assert colours == [RIGHT_LABELS.lower(), WRONG_LABELS.lower()]
