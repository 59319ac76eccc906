"""What `retrieval doctor` says is what is there, and what is wrong ends it with 1."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from index.model import in_the_box
from retrieval_app.commands import doctor_command
from retrieval_app.commands.cli import main


def _examine(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main(["doctor", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_it_says_what_is_installed_and_how_fast_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    report = _examine(capsys)
    assert report["installed"]["base"]["numpy"] == version("numpy")
    assert report["installed"]["gpu"] == {"faiss-gpu": None, "onnxruntime-gpu": None}
    assert report["embedding"]["photos_per_s"] > 0
    assert "CPUExecutionProvider" in report["embedding"]["providers"]
    assert {"JPEG", "PNG", "WEBP"} <= set(report["formats"])
    assert report["problems"] == []


def test_packages_that_overwrite_each_other_are_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "version", lambda _: "1.0")
    problems = _examine(capsys, code=1)["problems"]
    assert "faiss-cpu and faiss-gpu overwrite each other" in problems[0]


def test_packages_for_a_gpu_that_use_none_are_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> str:
        if name in ("faiss-cpu", "onnxruntime"):
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor_command, "version", find)
    runtime, faiss = _examine(capsys, code=1)["problems"]
    assert "onnxruntime-gpu is installed, but models run on the CPU" in runtime
    assert "faiss-gpu is installed, but finds no GPU" in faiss


def test_a_damaged_model_in_the_box_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "box.onnx"
    damaged.write_bytes(in_the_box.BOX.read_bytes()[:-1000])
    monkeypatch.setattr(in_the_box.find_box, "__defaults__", (damaged,))
    report = _examine(capsys, code=1)
    assert report["embedding"] is None
    assert "install that again" in report["problems"][0]


def test_in_words_it_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert f"numpy {version('numpy')}" in told
    assert "photos of 512 x 512 pixels a second" in told
    assert told.endswith("nothing is wrong\n")
