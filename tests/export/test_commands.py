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
def test_exports_repeat_to_the_byte(finished_run: FinishedRun, exported: ExportedModel, tmp_path: Path, capsys) -> None:
    out = tmp_path / "a" / "b" / "model.onnx"
    assert _export(finished_run.path, "--out", out, "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report == {**exported.to_json(), "model": str(out)}
    assert hash_file(out) == exported.sha256
    names = {"model", "sha256", "embedding_dim", "min_cosine", "bytes", "precision", "measured", "text_model"}
    assert set(report) == names
    assert (report["precision"], report["measured"], report["text_model"]) == ("float32", None, None)
    assert captured.err == ""


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
