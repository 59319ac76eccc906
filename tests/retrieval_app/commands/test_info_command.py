"""`retrieval info`, and `--backend` of every command that runs a model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from index.commands.index_group import index_group
from index.model.backends import measuring
from index.model.backends.names import NAMES, VARIABLE
from index.model.backends.registry import installed_backends
from index.model.in_the_box import find_box
from retrieval_app.commands.cli import main, root
from tests.conftest import draw_folder


@pytest.fixture(autouse=True)
def measured_in_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes are measured for a moment, and not kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(measuring, "_SECONDS", 0.01)


def tell(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["info", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told = tell(capsys, "box")
    assert told["model"] == str(find_box())
    assert (told["precision"], told["embedding_dim"], told["picture_dim"]) == ("float16", 128, 64)
    assert main(["info", "box"]) == 0
    assert "128 numbers by kind and 64 numbers by picture" in capsys.readouterr().out


def test_every_runtime_is_measured_and_the_chosen_one_is_told_with_its_reason(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tell(capsys, str(tiny_model), "--runtime")
    assert told["runtimes"].keys() == set(NAMES)
    for name in installed_backends():
        one = told["runtimes"][name]
        assert one["images_per_s"] > 0
        assert one["agrees"]
        assert one["version"] == installed_backends()[name]
    assert told["runtimes"]["tensorrt"] is None
    assert told["chosen"]["name"] == "onnxruntime"
    assert told["threads"]["waiting"] == "asleep"
    assert main(["info", str(tiny_model), "--runtime", "--backend", "openvino"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("* ")] == ["openvino"]
    assert "runs in openvino: it is named" in lines
    assert VARIABLE not in os.environ


def test_a_runtime_that_cannot_be_had_is_told_with_what_runs_instead(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tell(capsys, str(tiny_model), "--runtime", "--backend", "tensorrt")
    assert told["chosen"] == {"name": "onnxruntime", "why": "tensorrt is named, but cannot be had here"}


def test_a_gallery_says_what_computed_its_vectors(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = draw_folder(tmp_path / "images")
    gallery = tmp_path / "gallery"
    words = ["index", "build", str(tiny_model), str(images), "--out", str(gallery), "--backend", "openvino"]
    assert main(words) == 0
    capsys.readouterr()
    told = tell(capsys, str(gallery), "--runtime")
    assert told["gallery_runtime"]["backend"] == told["chosen"]["name"] == "openvino"
    assert main(["index", "info", str(gallery)]) == 0
    assert "openvino in float32" in capsys.readouterr().out
    photo = next(images.rglob("*.png"))
    assert main(["search", str(gallery), str(photo), "--backend", "onnxruntime"]) == 0
    assert photo.name in capsys.readouterr().out


def test_every_command_that_runs_a_model_takes_a_runtime() -> None:
    context = click.Context(root)
    commands = [
        root.get_command(context, name) for name in ("search", "evaluate", "compare", "serve", "mcp", "info")
    ]
    commands += [index_group.get_command(context, name) for name in ("build", "add", "update", "verify")]
    for command in commands:
        assert command is not None
        assert any("--backend" in option.opts for option in command.params), command.name
