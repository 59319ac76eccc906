"""`retrieval export` as people and programs call it."""

import json
from pathlib import Path

import pytest

from export.to_onnx import ExportedModel
from index.durable import hash_file
from retrieval_app.commands.cli import main
from tests.training.conftest import BACKBONE, FinishedRun

RAW = ("--backbone", BACKBONE, "--weights", "none", "--resize", "40", "--crop", "32")


def _export(*arguments: object) -> int:
    return main(["export", *map(str, arguments)])


@pytest.mark.slow
def test_a_second_export_has_the_same_bytes_and_json_prints_one_document_and_nothing_else(
    finished_run: FinishedRun, exported: ExportedModel, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "a" / "b" / "model.onnx"
    assert _export(finished_run.path, "--out", out, "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == {**exported.to_json(), "model": str(out)}
    assert hash_file(out) == exported.sha256
    assert set(report) == {"model", "sha256", "embedding_dim", "min_cosine", "bytes", "precision", "measured"}
    assert (report["precision"], report["measured"]) == ("float32", None)
    assert captured.err == ""


@pytest.mark.slow
def test_whitening_from_the_command_line(pictures: Path, tmp_path: Path, capsys) -> None:
    whiten = ("--whiten", pictures, "--embedding-dim", "5", "--cache", tmp_path / "cache")
    assert _export(*RAW, *whiten, "--out", tmp_path / "white.onnx", "--json") == 0
    assert json.loads(capsys.readouterr().out)["embedding_dim"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--out'"),
        (("--out", "m.onnx"), "either a RUN folder, or --backbone"),
        (("run", "--backbone", "resnet18", "--out", "m.onnx"), "either a RUN folder, or --backbone"),
        (("run", "--weights", "none", "--out", "m.onnx"), "--weights goes with --backbone"),
        ((*RAW, "--embedding-dim", "64", "--out", "m.onnx"), "--embedding-dim goes with --whiten"),
        (("--backbone", "resnet18", "--out", "m.onnx"), "--backbone needs --weights"),
        ((*RAW, "--whiten", "photos", "--out", "m.onnx", "--embedding-dim", "0"), "embedding-dim"),
    ],
)
def test_wrong_usage_exits_with_two_and_says_what_goes_together(arguments, message, capsys) -> None:
    assert _export(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no training run here"),
        (("--backbone", "resnet5", "--weights", "none"), "similar names: resnet50"),
        ((*RAW, "--crop", "64"), "--crop (64) must not exceed --resize (40)"),
        ((*RAW, "--view", "whole"), "--view whole stretches the whole image to --crop (32)"),
        (("--backbone", "vit_b_32", "--weights", "none", "--pooling", "gem"), "--pooling gem reads the feature maps"),
        ((*RAW, "--whiten", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_an_expected_error_is_one_line_and_exits_with_one(arguments, message, tmp_path: Path, capsys) -> None:
    assert _export(*arguments, "--out", tmp_path / "m.onnx", "--json") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
