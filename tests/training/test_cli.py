"""`retrieval train` as people and programs call it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click
import pytest

from retrieval_app.cli import main
from tests.training.conftest import FLAGS
from training.cli import default_cache
from training.cli import train as command
from training.config import ConfidenceConfig, DataConfig, EmbeddingConfig, InputConfig, LossConfig, TrainConfig


def _train(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


def _one_error_line(err: str) -> str:
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    return errors[0]


@pytest.fixture
def options(tmp_path: Path, cache: Path) -> tuple[object, ...]:
    return ("--out", tmp_path / "run", "--cache", cache, *FLAGS)


def test_json_prints_one_document_and_nothing_else(pictures, other_pictures, options, capsys, tmp_path) -> None:
    assert _train(pictures, *options, "--val", other_pictures, "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads((tmp_path / "run" / "report.json").read_text())
    assert {"run", "seconds", "phases", "val", "baselines"} <= set(report)
    assert "embedding 4/4: loss" in captured.err


def test_the_text_report_compares_with_the_untrained_baselines(pictures, other_pictures, options, capsys) -> None:
    assert _train(pictures, *options, "--val", other_pictures, "--method", "proxy-anchor") == 0
    out = capsys.readouterr().out
    assert "48 images of 4 classes, 0 skipped" in out
    for name in ("proxy-anchor (8-d)", "raw (512-d), untrained", "pca (8-d)", "pca-whitened (8-d)"):
        (line,) = [line for line in out.splitlines() if line.startswith(name)]
        figures = re.findall(r"\d+\.\d\d", line.removeprefix(name))
        assert len(figures) == 5
        assert all(0 <= float(figure) <= 100 for figure in figures)


def test_without_validation_images_the_text_says_how_to_get_figures(pictures, options, capsys) -> None:
    assert _train(pictures, *options) == 0
    assert "no --val given" in capsys.readouterr().out


def test_the_options_arrive_in_the_run(pictures, options, tmp_path) -> None:
    changed = ("--lambda", "0.2", "--beta", "50", "--epochs", "1", "--negative-normalisation", "present")
    more = ("--seed", "7", "--max-per-class", "4", "--label-noise", "uniform:0.5", "--features", "cached:2")
    assert _train(pictures, *options, *changed, *more) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["loss"]["lambda_"], config["loss"]["beta"], config["seed"]) == (0.2, 50, 7)
    assert config["loss"]["negative_normalisation"] == "present"
    assert config["embedding"]["epochs"] == 1
    assert config["input"]["features"] == "cached:2"
    assert config["data"] == {"max_per_class": 4, "label_noise": "uniform:0.5"}


def test_a_finished_run_can_be_resumed_and_not_begun_again(pictures, options, capsys) -> None:
    assert _train(pictures, *options, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert _train(pictures, *options, "--json", "--resume") == 0
    assert json.loads(capsys.readouterr().out) == first
    assert _train(pictures, *options) == 1
    assert "--resume" in _one_error_line(capsys.readouterr().err)


def _flags(command: click.Command) -> dict[str, click.Option]:
    return {flag: option for option in command.params if isinstance(option, click.Option) for flag in option.opts}


def test_every_config_field_has_a_flag_with_help_and_its_default() -> None:
    flags = _flags(command)
    for config in (DataConfig, InputConfig, ConfidenceConfig, LossConfig, EmbeddingConfig):
        for field in dataclasses.fields(config):
            option = flags["--" + field.name.rstrip("_").replace("_", "-")]
            assert option.help
            assert option.default == field.default
    nested = {"data", "input", "confidence", "loss", "embedding"}
    for field in dataclasses.fields(TrainConfig):
        assert field.name in nested or "--" + field.name.replace("_", "-") in flags


def test_help_names_every_flag_and_gives_examples(capsys) -> None:
    assert _train("--help") == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in _flags(command))
    assert out.count("retrieval train ") >= 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("data",),
        ("data", "--out", "run"),
        ("--out", "run", "--weights", "none"),
        ("data", "--out", "run", "--weights", "none", "--epochs", "many"),
        ("data", "--out", "run", "--weights", "none", "--method", "triplet"),
        ("data", "--out", "run", "--weights", "none", "--workers", "0"),
        ("data", "--out", "run", "--weights", "none", "--unknown"),
    ],
)
def test_wrong_usage_exits_with_two(arguments: tuple[str, ...], capsys) -> None:
    assert _train(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Usage:" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lambda", "2"), "--lambda must be between 0 and 1, got 2.0"),
        (("--crop", "99"), "--crop (99) must not exceed --resize (40)"),
        (("--label-noise", "half"), "--label-noise must be uniform:P"),
        (("--embedding-dim", "99999"), "--embedding-dim must be at most 8192"),
    ],
)
def test_a_value_out_of_range_is_wrong_usage_and_names_the_flag(
    pictures, options, arguments, message, capsys
) -> None:
    assert _train(pictures, *options, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Usage: retrieval train" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backbone", "resnet5"), "similar names: resnet50"),
        (("--weights", "nowhere.pth"), "nowhere.pth: no such weights file"),
        (("--val", "nowhere"), "nowhere: no such folder or CSV file"),
        (("--resume",), "no training run here"),
    ],
)
def test_an_expected_error_is_one_line_and_exits_with_one(pictures, options, arguments, message, capsys) -> None:
    assert _train(pictures, *options, *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in _one_error_line(captured.err)


def test_debug_shows_the_traceback_before_the_line(pictures, options, capsys) -> None:
    assert _train(pictures, *options, "--resume", "--debug") == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_a_weights_file_is_kept_as_an_absolute_path(pictures, options, tmp_path, monkeypatch) -> None:
    import torch
    import torchvision

    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), tmp_path / "weights.pth")
    monkeypatch.chdir(tmp_path)
    assert _train(pictures, *options, "--weights", "weights.pth", "--epochs", "1") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["weights"] == str(tmp_path / "weights.pth")


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "retrieval-app"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "retrieval-app"
