"""The benchmark of scale: small galleries phase by phase, checks of predictions, tables; wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale.__main__ import main
from benchmarks.scale.catalogue_tables import extrapolate, find_exponent
from benchmarks.scale.phases import PHASES
from benchmarks.scale.quantities import QUANTITIES, Check, check_all, fit_all, take_medians
from benchmarks.scale.scale_gallery import draw_vectors
from benchmarks.scale.scale_tables import format_all, format_checks
from benchmarks.scale.show import show, show_images
from benchmarks.scale.stopwatch import Stopwatch
from index.arrays import unit_rows
from index.gallery.gallery import Gallery

ROWS = 300


def test_a_small_gallery_goes_through_every_phase(tmp_path: Path) -> None:
    found = {}
    for name in ("make", "ask", "verify", "add one", "remove one", "backup"):
        watch = Stopwatch("wall")
        result = PHASES[name](tmp_path / "work", watch, rows=ROWS, seed=0)
        found[name] = {**result, "seconds": watch.seconds, "memory": {"anonymous": 1}}
    gallery = Gallery.open(tmp_path / "work" / "gallery")
    assert (gallery.version, gallery.count) == (
        "000003",
        ROWS - ROWS // 100,
    )  # 1 % skipped, one added, one removed
    disk = found["make"]["disk"]
    assert disk["vectors"] >= gallery.count * (4 * (128 + 64) + 2 * 8)
    assert disk["version"] > disk["catalogue"] + disk["vectors"]
    assert not (tmp_path / "work" / "work").exists()
    measured = {name: QUANTITIES[name].find(found) for name in QUANTITIES}
    assert {name for name, value in measured.items() if value is None} == {
        name for name in QUANTITIES if name.startswith(("hnsw", "ivf", "pq"))
    }
    assert all(value > 0 for value in measured.values() if value is not None)


def test_a_kind_is_built_and_measured_apart_from_the_rest_of_a_new_version(tmp_path: Path) -> None:
    for name, more in (("make", {}), ("reindex", {"kind": "ivf"}), ("ask", {"catalogue": False})):
        watch = Stopwatch("processor")
        result = PHASES[name](tmp_path, watch, rows=1100, seed=0, **more)
        if name == "reindex":
            assert 0 < watch.seconds["build index"] < watch.seconds["tune"]
            assert 0 < watch.seconds["measure index"] < watch.seconds["tune"]
    assert result["index"]["type"] == "ivf"
    assert result["disk"]["index"] > 1089 * (128 + 64)
    assert "facets" not in watch.seconds


def test_drawn_vectors_are_units_in_every_output_and_the_same_for_a_seed() -> None:
    vectors = draw_vectors(50, widths=[16, 8], seed=3)
    assert unit_rows(vectors[:, :16]).all()
    assert unit_rows(vectors[:, 16:]).all()
    assert (vectors == draw_vectors(50, widths=[16, 8], seed=3)).all()
    assert not (vectors == draw_vectors(50, widths=[16, 8], seed=4)).any()


def _gallery(images: int, *, settle_s: float) -> dict:
    return {"make": {
        "disk": {"catalogue": 300 * images, "vectors": 784 * images, "making": 3000 * images},
        "seconds": {"scan": 1.0, "settle": settle_s, "publish": 1.0}, "memory": {"anonymous": 1e8},
    }}  # fmt: skip


GALLERIES = {
    1000: [_gallery(1000, settle_s=seconds) for seconds in (1.0, 1.1, 9.0)],
    3000: [_gallery(3000, settle_s=3.1)],
    9000: [_gallery(9000, settle_s=20.0)],
}


def test_predictions_are_of_the_small_sizes_alone_and_say_where_they_fail() -> None:
    assert take_medians(GALLERIES, "settle s") == {1000: 1.1, 3000: 3.1, 9000: 20.0}
    costs = fit_all(GALLERIES, (128, 64), small=[1000, 3000])
    assert set(costs) < set(QUANTITIES)
    checks = {(check.quantity, check.images): check for check in check_all(GALLERIES, costs, (128, 64))}
    assert checks["catalogue bytes", 9000].ratio == pytest.approx(1)
    assert checks["settle s", 9000].predicted == pytest.approx(9.1)
    assert not checks["settle s", 9000].is_good
    assert Check("x", 1, 1.2, 1.0).is_good
    assert not Check("x", 1, 0.79, 1.0).is_good
    text = format_checks(GALLERIES, (128, 64), [1000, 3000])
    assert "9.1 s / 20 s = **0.46**" in text
    assert "At sizes that nothing was fitted to 6 of 7 are within it" in text


def test_a_run_is_kept_told_as_tables_and_gone_on_with(tmp_path: Path, capsys) -> None:
    arguments = ["--out", str(tmp_path), "--part", "catalogue", "--catalogue-sizes", "300", "900"]
    main(arguments)
    first = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record["results"]["catalogue"]) == {"300", "900"}
    assert record["settings"]["seed"] == 0
    assert format_all(record) + "\n" == first == (tmp_path / "table.md").read_text()
    assert "| change: all |" in first
    main(arguments)
    assert capsys.readouterr().out == first  # nothing was measured again
    main(["--out", str(tmp_path), "--tables", str(tmp_path / "record.json")])
    assert capsys.readouterr().out == first


def test_what_grows_is_told_from_what_does_not() -> None:
    assert find_exponent({10: 1.0, 100: 10.0, 1000: 100.0}) == pytest.approx(1)
    assert find_exponent({10: 1.0}) is None
    assert extrapolate({10: 1.0, 1000: 100.0}, 10**6) == pytest.approx(1e5)
    assert extrapolate({10: 1.0, 1000: 1.01}, 10**6) == 1.01
    assert extrapolate({10: 100.0, 1000: 110.0}, 10**6, unit="B") == pytest.approx(10_200, rel=0.01)
    assert extrapolate({10: 2.0}, 10**6) == 2.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "s", "0"), (2.5e-5, "s", "25 µs"), (0.0012, "s", "1.2 ms"), (100, "s", "100 s"), (121, "s", "2.02 min"),
     (7200, "s", "2 h"), (864_000, "s", "10 days"), (12, "B", "12 B"), (1.25e9, "B", "1.25 GB"),
     (3.2e14, "B", "320 TB")],
)  # fmt: skip
def test_figures_have_the_unit_that_suits_them(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_powers_of_ten_of_images_are_told_as_such() -> None:
    assert [show_images(n) for n in (300, 10_000, 10**9, 123_456)] == ["300", "10⁴", "10⁹", "123,000"]


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--fit", "10000"), "--fit must be at least two of the --sizes"),
     (("--fit", "10000", "20000"), "--fit must be at least two of the --sizes"),
     (("--rounds", "0"), "--rounds must be at least 1"),
     (("--catalogue-sizes", "10"), "must be at least 100 each")],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_two(options, message: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
