"""`retrieval train` as people and programs call it."""

import dataclasses
import json
from pathlib import Path

import click
import pytest
import torch
import torchvision

from retrieval_app.commands.cli import main
from tests.training.conftest import EVERY_METHOD, FLAGS, OF_MODULE, all_options, make_config
from training.commands import train as command
from training.options.resolve import DEFAULT


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
    assert "the network stays frozen: --recipe spa-paper trains a head\n" in captured.err
    assert "embedding 4/4: loss" in captured.err


def test_a_table_names_its_columns_and_its_split(pictures, other_pictures, options, capsys, tmp_path) -> None:
    table, parts = tmp_path / "t.csv", {"train": pictures, "val": other_pictures}
    rows = [f"{path},{path.parent.name},{part}" for part, folder in parts.items() for path in folder.rglob("*.*")]
    table.write_text("\n".join(["file,kind,part", *rows]) + "\n")
    assert _train(table, *options) == 1
    error = _one_error_line(capsys.readouterr().err)
    assert "expected a column path and a column label; found file, kind, part" in error
    columns = ("--path-column", "file", "--label-column", "kind", "--split-column", "part")
    assert _train(table, *options, *columns, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["images"], report["classes"]) == (48, 4)
    assert report["val"]["queries"] > 0
    assert _train(table, *options, *columns, "--resume", "--json") == 0


def test_the_options_arrive_in_the_run(pictures, options, tmp_path) -> None:
    given = {
        "lambda_": 0.2,
        "beta": 50.0,
        "head_epochs": 1,
        "seed": 7,
        "max_per_class": 4,
        "label_noise": "uniform:0.5",
        "min_confidence": 0.01,
    }
    flags = [text for key, value in given.items() for text in ("--" + key.strip("_").replace("_", "-"), value)]
    assert _train(pictures, *options, *OF_MODULE, *flags) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert stored == json.loads(json.dumps(make_config(**given).options()))


def test_every_config_field_has_a_flag_with_its_default_and_choices() -> None:
    flags = {flag: option for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    assert {"weights", "label_noise", "margins", "nca_scale", "ms_beta"} < set(all_options())
    for field in all_options().values():
        option = flags["--" + field.name.rstrip("_").replace("_", "-")]
        assert option.help
        if field.default is not dataclasses.MISSING:
            assert option.default == field.default
        if field.name in DEFAULT:
            usual = DEFAULT[field.name]
            shown = "by holdout evaluation" if usual is None else str(usual)
            assert str(option.show_default).startswith(shown), "help shows what is used without --recipe spa-paper"
        if "choices" in field.metadata:
            assert option.type.choices == field.metadata["choices"]


RUN = ("--out", "run", "--cache", "cache", *EVERY_METHOD)


@pytest.mark.parametrize(
    ("status", "arguments", "message"),
    [
        (2, (), "Missing option '--out'"),
        (2, (*RUN, "--lambda", "2"), "--lambda must be greater than 0 and less than 1, got 2.0"),
        (2, (*RUN, "--method", "pca", "--min-confidence", "0.1"), "--min-confidence goes with a method that trains"),
        (1, (*RUN, "--val", "nowhere"), "nowhere: no such folder, CSV or Parquet file"),
        (1, (*RUN, "--label-column", "kind"), "of which no columns can be named"),
        (1, (*RUN, "--protocol", "cub-200-2011"), "images.txt: no such file; CUB_200_2011.tgz has it"),
    ],
)
def test_usage_exits_with_2_errors_with_1(pictures, status, arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _train(pictures, *arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in (_one_error_line(captured.err) if status == 1 else captured.err)
    assert ("Usage: retrieval train" in captured.err) == (status == 2)
    assert "Traceback" not in captured.err


def test_a_weights_file_is_kept_as_an_absolute_path(pictures, options, tmp_path, monkeypatch) -> None:
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), tmp_path / "weights.pth")
    monkeypatch.chdir(tmp_path)
    assert _train(pictures, *options[:4], *EVERY_METHOD, "--method", "raw", "--weights", "weights.pth") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["weights"] == str(tmp_path / "weights.pth")
