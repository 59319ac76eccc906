"""The command: from folders of images to tables and pictures, and what it refuses to mix up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.noise.__main__ import main
from benchmarks.noise.feature_sets import load_features
from tests.photos import KINDS, write_photos


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pictures")
    write_photos(folder / "train", kinds=KINDS[:5], pictures_per_kind=8, seed=0, size=40)
    write_photos(folder / "test", kinds=KINDS[5:8], pictures_per_kind=5, seed=0, size=40)
    return f"folder:{folder / 'train'}:{folder / 'test'}"


def _run(out: Path, dataset: str, *options: str) -> None:
    load_features.cache_clear()
    small = ("--backbone", "squeezenet1_1", "--weights", "none", "--resize", "40", "--crop", "32")
    main(["--out", str(out), "--dataset", dataset, *small, "--width", "4", "--workers", "1", *options])


def _methods(*names: str) -> list[str]:
    return [word for name in names for word in ("--method", name)]


def test_a_table_is_tuned_trained_printed_written_and_drawn_and_only_once(
    tmp_path: Path, dataset: str, capsys
) -> None:
    options = [
        *_methods("proxy-nca", "proxy-nca-filtered", "spa", "raw", "pca-whitened"),
        *("--noise", "uniform:0.25", "--noise", "clean", "--seeds", "0", "1", "--table", "3", "--trials", "1"),
    ]
    _run(tmp_path, dataset, *options)
    printed = capsys.readouterr().out
    tables = sorted((tmp_path / "results").glob("table-3_*.json"))
    assert len(tables) == 2
    record = json.loads(next(path for path in tables if "uniform" in path.name).read_text())
    assert [row["name"] for row in record["results"]["rows"]] == [
        "proxy-nca", "proxy-nca-filtered", "spa", "raw", "pca-whitened"
    ]  # fmt: skip
    assert record["settings"]["backbone"] == "squeezenet1_1"
    assert record["machine"]["cores"]
    assert {"lr", "nca_scale", "epochs"} <= set(record["results"]["rows"][0]["settings"])
    assert "proxy-nca leads by" in printed
    assert (tmp_path / "tables.md").read_text().count("| proxy-nca-filtered |") == 3, "two tables, and all noises"
    for kind in ("table-3", "grid", "confidences", "noise"):
        assert list((tmp_path / "results").glob(f"{kind}_*.png")), kind
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    _run(tmp_path, dataset, *options)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == before
    assert capsys.readouterr().out == printed


def test_the_papers_values_need_no_trial(tmp_path: Path, dataset: str) -> None:
    options = ("--settings", "paper", "--seeds", "0", "--noise", "uniform:0.25", "--table", "3")
    _run(tmp_path, dataset, *_methods("proxy-nca"), *options)
    cells = [json.loads(path.read_text())["cell"] for path in (tmp_path / "cells").glob("*.json")]
    assert [(cell["method"], cell["settings"]) for cell in cells] == [("proxy-nca", {})]


def test_untrained_methods_alone_make_a_table_of_every_noise(tmp_path: Path, dataset: str, capsys) -> None:
    noises = ("--noise", "clean", "--noise", "bernoulli:0.5")
    _run(tmp_path, dataset, *_methods("raw", "pca"), *noises, "--settings", "paper", "--table", "3")
    assert capsys.readouterr().out.count("| pca |") == 2


def test_a_projection_is_no_wider_than_the_images_span(tmp_path: Path, dataset: str, capsys) -> None:
    _run(
        tmp_path, dataset, *_methods("pca"), "--width", "512", "--noise", "clean", "--settings", "paper", "--table", "3"
    )  # fmt: skip
    assert "| pca | 39 |" in capsys.readouterr().out


def test_another_backbone_is_refused_where_features_stand(tmp_path: Path, dataset: str) -> None:
    options = (*_methods("raw"), "--noise", "clean", "--settings", "paper", "--table", "3")
    _run(tmp_path, dataset, *options)
    with pytest.raises(SystemExit, match=r"another preprocess, .*; choose another --out"):
        _run(tmp_path, dataset, *options, "--crop", "24")
    with pytest.raises(SystemExit, match=r"another pooling, .*; choose another --out"):
        _run(tmp_path, dataset, *options, "--pooling", "gem")


def test_another_hierarchy_is_refused_where_one_was_used(tmp_path: Path, dataset: str) -> None:
    classes = [path.name for path in sorted(Path(dataset.split(":")[1]).iterdir())]
    hierarchy = tmp_path / "tree.csv"
    hierarchy.write_text("class,parent\n" + "".join(f"{name},thing\n" for name in classes))
    options = (*_methods("raw"), "--noise", "semantic:0.3", "--hierarchy", str(hierarchy), "--settings", "paper")
    _run(tmp_path / "out", dataset, *options, "--table", "3")
    hierarchy.write_text(hierarchy.read_text() + "thing,\n")
    with pytest.raises(SystemExit, match="another hierarchy"):
        _run(tmp_path / "out", dataset, *options, "--table", "3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise", "clean", "--settings", "paper"), "nothing to do: name a --table or an --ablation"),
        (("--noise", "lots:0.3", "--table", "3"), "--noise lots:0.3: "),
        (("--width", "0", "--table", "3"), "--width, --workers, --threads and --trials must be at least 1"),
    ],
)
def test_wrong_usage_is_said_and_exits_with_two(
    tmp_path: Path, dataset: str, options, message: str, capsys
) -> None:
    with pytest.raises(SystemExit) as error:
        _run(tmp_path, dataset, *options)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_dataset_without_test_images_is_refused(tmp_path: Path, dataset: str) -> None:
    train = dataset.split(":")[1]
    for name in (f"folder:{train}", f"folder:{train}:{train}"):
        with pytest.raises(SystemExit, match="expected folder:TRAIN:TEST"):
            _run(tmp_path, name, *_methods("raw"), "--noise", "clean", "--settings", "paper", "--table", "3")


def test_tables_of_other_methods_or_seeds_stand_side_by_side(tmp_path: Path, dataset: str) -> None:
    options = ("--noise", "clean", "--settings", "paper", "--table", "3")
    _run(tmp_path, dataset, *_methods("raw"), *options)
    _run(tmp_path, dataset, *_methods("raw", "pca"), *options)
    _run(tmp_path, dataset, *_methods("raw", "pca"), *options, "--seeds", "3")
    assert len(list((tmp_path / "results").glob("table-3_*.md"))) == 3


def test_an_ablation_is_of_the_methods_asked_for(tmp_path: Path, dataset: str, capsys) -> None:
    options = ("--noise", "clean", "--settings", "paper", "--seeds", "0", "--ablation", "width")
    _run(tmp_path, dataset, *_methods("pca", "raw"), *options)
    printed = capsys.readouterr().out
    assert printed.count("| pca |") == printed.count("| raw |") == 6
    assert "spa" not in printed


def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path: Path, dataset: str, monkeypatch, capsys) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.noise.grid.run_cell", interrupt)
    with pytest.raises(SystemExit) as error:
        _run(tmp_path, dataset, *_methods("raw"), "--noise", "clean", "--settings", "paper", "--table", "3")
    assert error.value.code == 130
    assert "the same command goes on" in capsys.readouterr().err
