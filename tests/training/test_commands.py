"""`retrieval train` as people and programs call it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
import pytest

from retrieval_app.commands.cli import main
from tests.training.conftest import EVERY_METHOD, FLAGS, OF_MODULE, all_options, draw_over, make_config
from tests.training.data.protocols.test_load import make_cub
from tests.training.runs import read_csv
from training.commands import default_cache
from training.commands import train as command
from training.options.config import USUAL_DIM
from training.options.losses import LIBRARY_METHODS, METHODS, RIVALS
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


def test_options_of_torchrun_are_told_from_those_of_the_training(capsys) -> None:
    assert _train("photos", "--out", "run", "--nproc-per-node", "2") == 2
    assert (
        "--nproc-per-node is an option of torchrun, which starts the processes: torchrun"
        in capsys.readouterr().err
    )
    assert _train("--help") == 0
    assert "torchrun --nproc-per-node 8 -m training photos/" in capsys.readouterr().out


def test_json_prints_one_document_and_nothing_else(pictures, other_pictures, options, capsys, tmp_path) -> None:
    assert _train(pictures, *options, "--val", other_pictures, "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == json.loads((tmp_path / "run" / "report.json").read_text())
    assert {"run", "seconds", "phases", "val", "baselines"} <= set(report)
    assert "embedding 4/4: loss" in captured.err


def _write_table(table: Path, training: Path, validation: Path) -> Path:
    parts = {"train": training, "val": validation}
    rows = [f"{path},{path.parent.name},{part}" for part, folder in parts.items() for path in folder.rglob("*.*")]
    table.write_text("\n".join(["file,kind,part", *rows]) + "\n")
    return table


def test_a_table_names_its_columns_and_its_split(pictures, other_pictures, options, capsys, tmp_path) -> None:
    table = _write_table(tmp_path / "t.csv", pictures, other_pictures)
    assert _train(table, *options) == 1
    error = _one_error_line(capsys.readouterr().err)
    assert "expected a column path and a column label; found file, kind, part" in error
    assert "--path-column and --label-column" in error
    columns = ("--path-column", "file", "--label-column", "kind", "--split-column", "part")
    assert _train(table, *options, *columns, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["images"], report["classes"]) == (48, 4)
    assert report["val"]["queries"] > 0
    assert _train(table, *options, *columns, "--resume", "--json") == 0


def test_columns_of_a_folder_are_refused(pictures, options, capsys) -> None:
    assert _train(pictures, *options, "--label-column", "kind") == 1
    assert "a folder, of which no columns can be named" in _one_error_line(capsys.readouterr().err)


def test_the_options_arrive_in_the_run(pictures, options, tmp_path) -> None:
    changed = ("--lambda", "0.2", "--beta", "50", "--epochs", "1", "--negative-normalisation", "present")
    more = ("--seed", "7", "--max-per-class", "4", "--label-noise", "uniform:0.5", "--features", "cached:2")
    assert _train(pictures, *options, *changed, *more) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["loss"]["options"]["lambda_"], config["loss"]["options"]["beta"], config["seed"]) == (
        0.2,
        50,
        7,
    )
    assert config["loss"]["options"]["negative_normalisation"] == "present"
    assert config["embedding"]["epochs"] == 1
    assert config["input"]["features"] == "cached:2"
    assert config["data"] == {
        "protocol": "folder", "max_per_class": 4, "label_noise": "uniform:0.5", "hierarchy": None,
        "path_column": "path", "label_column": "label", "split_column": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "given"),
    [
        (
            "procsim",
            {
                "nca_scale": 3.0, "procsim_base": "proxy-nca", "procsim_threshold": "mixture", "procsim_lambda": 0.3,
                "procsim_scale": 2.0, "procsim_proxy_lr": 0.01,
            },
        ),
        ("superloss", {"superloss_lambda": 0.25, "positive_margin": 0.1, "negative_margin": 0.9}),
    ],
)  # fmt: skip
def test_the_options_of_a_loss_arrive_in_the_run(pictures, options, tmp_path, method, given) -> None:
    given |= {"min_confidence": 0.01}
    flags = [text for name, value in given.items() for text in ("--" + name.replace("_", "-"), value)]
    assert _train(pictures, *options, *OF_MODULE, *flags, "--epochs", "1", "--method", method) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    expected = make_config(**given, epochs=1, method=method, validate_every=10)
    assert stored == json.loads(json.dumps(dataclasses.asdict(expected)))


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
    assert {"weights", "label_noise", "margins", "nca_scale", "ms_beta", "guidance"} < set(all_options())
    for field in all_options().values():
        option = flags["--" + field.name.rstrip("_").replace("_", "-")]
        assert option.help
        if field.default is not dataclasses.MISSING:
            assert option.default == field.default
            shown = option.show_default
            if field.name in DEFAULT:
                assert isinstance(shown, str)
                usual = DEFAULT[field.name]
                assert shown.startswith("the trial" if usual is None else str(usual)), (
                    "help shows what is used without --recipe paper"
                )
            elif field.name == "embedding_dim":
                assert str(shown).startswith(str(USUAL_DIM))
            elif not isinstance(field.default, bool):  # --x/--no-x tells by itself
                assert shown is (field.default is not None)
        if "choices" in field.metadata:
            assert option.type.choices == field.metadata["choices"]


def test_options_come_from_a_file_and_the_command_line_goes_before(pictures, options, tmp_path, capsys) -> None:
    usual = {"weights": "none", "backbone": "squeezenet1_1", "resize": 40, "crop": 32, "embedding-dim": 8, "steps": 4,
             "trial": False, "seed": 3, "max-per-class": 5}  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in usual.items()]
    (tmp_path / "mine.toml").write_text("\n".join(lines), encoding="utf-8")
    where = (pictures, "--out", tmp_path / "run", "--cache", options[3])
    assert _train(*where, "--config", tmp_path / "mine.toml", "--seed", "4") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (config["weights"], config["seed"], config["data"]["max_per_class"]) == ("none", 4, 5)
    (tmp_path / "mine.toml").write_text("batchsize = 9", encoding="utf-8")
    capsys.readouterr()
    assert _train(*where, "--config", tmp_path / "mine.toml") == 2
    assert "there is no option batchsize; did you mean batch_size?" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("data",),
        ("data", "--out", "run", "--weights", "none", "--epochs", "many"),
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
        (("--lambda", "2"), "--lambda must be greater than 0 and less than 1, got 2.0"),
        (("--crop", "99"), "--crop (99) must not exceed --resize (40)"),
        (("--method", "pca", "--min-confidence", "0.1"), "--min-confidence goes with a method that trains"),
        (
            ("--method", "superloss", "--superloss-lambda", "nan"),
            "--superloss-lambda must be greater than 0, got nan",
        ),
    ],
)
def test_a_value_out_of_range_is_wrong_usage_and_names_the_flag(
    pictures, options, arguments, message, capsys
) -> None:
    assert _train(pictures, *options[:4], *EVERY_METHOD, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Usage: retrieval train" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backbone", "resnet5"), "similar names: resnet50"),
        (("--val", "nowhere"), "nowhere: no such folder, CSV or Parquet file"),
        (("--resume",), "no training run here"),
        (("--protocol", "cub-200-2011"), "images.txt: no such file; CUB_200_2011.tgz has it"),
        (
            ("--method", "procsim", "--omega", "1", "--guidance", "nowhere.npz"),
            "nowhere.npz: the similarities cannot be read",
        ),
    ],
)
def test_an_expected_error_is_one_line_and_exits_with_one(pictures, options, arguments, message, capsys) -> None:
    assert _train(pictures, *options[:4], *EVERY_METHOD, *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in _one_error_line(captured.err)


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


# Of every kind of loss one; all of them in the slow tests.
OF_EACH_KIND = ("spa", "triplet", "pca")


@pytest.mark.parametrize(
    "method", [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_every_method_trains_from_the_command_line(pictures, other_pictures, options, method, capsys) -> None:
    if method in LIBRARY_METHODS:
        pytest.importorskip("pytorch_metric_learning")
    given = ("--val", other_pictures, "--method", method, "--json")
    short = () if method in RIVALS else ("--epochs", "1")
    assert _train(pictures, *options[:4], *EVERY_METHOD, *short, *given) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["val"]["queries"] == 18
    if method in report["baselines"]:
        assert report["val"]["recall"] == report["baselines"][method]["recall"]


def test_semantic_noise_follows_a_hierarchy_from_a_file(pictures, options, tmp_path, capsys) -> None:
    kinds = sorted(path.name for path in pictures.iterdir())
    tree = tmp_path / "tree.csv"
    rows = [f"{kind},{'first' if number < 2 else 'second'}" for number, kind in enumerate(kinds)]
    tree.write_text("\n".join(["class,parent", *rows, "first,things", "second,things"]) + "\n")
    noise = ("--label-noise", "semantic:1", "--hierarchy", tree)
    assert _train(pictures, *options[:4], *EVERY_METHOD, *noise, "--method", "raw", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["noise"]["wrong"] == 48
    siblings = dict(zip(kinds, [kinds[1], kinds[0], kinds[3], kinds[2]], strict=True))
    labels = read_csv(tmp_path / "run" / "labels.csv")
    assert all(row["label"] == siblings[row["given"]] for row in labels)


def test_a_hierarchy_without_one_of_the_classes_is_refused_before_any_features(pictures, tmp_path, capsys) -> None:
    kinds = sorted(path.name for path in pictures.iterdir())
    tree = tmp_path / "tree.csv"
    tree.write_text("\n".join(["class,parent", *(f"{kind},things" for kind in kinds[1:])]) + "\n")
    out, cache = tmp_path / "run", tmp_path / "cache"
    noise = ("--label-noise", "semantic:0.5", "--hierarchy", tree)
    assert _train(pictures, "--out", out, "--cache", cache, *FLAGS, *noise) == 1
    assert f"tree.csv: 1 of the classes not found: '{kinds[0]}'" in _one_error_line(capsys.readouterr().err)
    assert not out.exists()
    assert not cache.exists()


def test_a_benchmark_trains_on_one_part_of_its_download_and_validates_on_the_other(
    options, tmp_path, capsys, caplog
) -> None:
    root = draw_over(make_cub(tmp_path / "download"))
    assert _train(root, *options, "--protocol", "cub-200-2011", "--method", "proxy-anchor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["images"], report["classes"]) == (6, 3)
    assert {row["given"] for row in read_csv(tmp_path / "run" / "labels.csv")} == {
        "001.Bird_1", "002.Bird_2", "100.Bird_100",
    }  # fmt: skip
    assert report["val"]["queries"] == 4
    assert list(report["val"]["recall"]) == ["1", "2", "4", "8"]
    assert report["val"]["recall"]["4"] == 1, "a query has three others, one of them of its class"
    assert "published are 5864 of 100" in caplog.text


def test_validation_images_of_ones_own_take_the_place_of_a_benchmarks_test_part(
    other_pictures, options, tmp_path, capsys
) -> None:
    root = draw_over(make_cub(tmp_path / "download"))
    protocol = ("--protocol", "cub-200-2011", "--val", other_pictures)
    assert _train(root, *options[:4], *EVERY_METHOD, *protocol, "--method", "raw", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["val"]["queries"] == 18
    assert list(report["val"]["recall"]) == ["1", "2", "4", "8", "16"]
