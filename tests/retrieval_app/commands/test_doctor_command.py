"""What `retrieval doctor` says is what is there, and what is wrong ends it with 1."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from index.model import builtin
from index.model.backends.backend import VARIABLE
from index.model.builtin import find_builtin
from index.versions.gallery_parts import make_mark
from retrieval_app.commands import doctor_command
from retrieval_app.commands.cli import main


def _examine(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    assert main(["doctor", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_it_says_what_is_installed_and_how_fast_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    report = _examine(capsys)
    assert report["installed"]["base"]["numpy"] == version("numpy")
    assert report["embedding"]["photos_per_s"] > 0
    assert report["problems"] == []
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("nothing is wrong\n")


def test_conflicting_packages_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "version", lambda _: "1.0")
    problems = _examine(capsys, code=1)["problems"]
    assert "faiss-cpu and faiss-gpu overwrite each other" in problems[0]


def test_broken_model(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "builtin.onnx"
    damaged.write_bytes(builtin.BUILTIN_MODEL.read_bytes()[:-1000])
    monkeypatch.setattr(builtin.find_builtin, "__defaults__", (damaged,))
    report = _examine(capsys, code=1)
    assert report["embedding"] is None
    assert "install that again" in report["problems"][0]


@pytest.fixture(autouse=True)
def measured_in_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


def tell(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["info", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_gallery_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gallery").mkdir()
    make_mark(tmp_path / "gallery")
    assert main(["info", str(tmp_path / "gallery")]) == 1
    assert "`retrieval index info GALLERY` describes it" in capsys.readouterr().err


def test_a_model_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told = tell(capsys, "builtin")
    assert told["model"] == str(find_builtin())
    assert (told["precision"], told["embedding_dim"], told["copy_dim"]) == ("int8", 256, 128)
