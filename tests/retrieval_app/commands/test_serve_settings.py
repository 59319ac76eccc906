"""Every limit of the server as an option, a variable and a line of a file, and which of them goes before which."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from retrieval_app.commands.cli import main
from retrieval_app.commands.serve_command import ServeCommand, name_setting, serve

assert isinstance(serve, ServeCommand)
SETTINGS = {name_setting(option): option for option in serve.settings()}
SECRET = "a-secret-of-the-tests"
_OTHER = {
    "host": "127.0.0.2",
    "port": 8,
    "config": None,
    "token": None,
    "backend": "openvino",
    "root-path": "/photos",
    "trusted-proxy": ["10.0.0.1"],
}


def _choose_value(option: click.Option) -> Any:
    if option.is_flag:
        return True
    if option.multiple:
        return ["a.example"]
    is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return (option.default or 0) + 1 if is_number else "here"


VALUES = {name: _OTHER.get(name, _choose_value(option)) for name, option in SETTINGS.items()}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RETRIEVAL_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


def _show(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert main(["serve", "nowhere", "--show-config", "--json", *words]) == 0, capsys.readouterr().err
    settings: dict[str, dict[str, Any]] = json.loads(capsys.readouterr().out)["settings"]
    return settings


def _fail(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    assert main(["serve", "nowhere", *words]) == code
    return capsys.readouterr().err


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = {name: value for name, value in VALUES.items() if value is not None}
    for name, value in given.items():
        text = " ".join(value) if isinstance(value, list) else str(value)
        monkeypatch.setenv(f"RETRIEVAL_SERVE_{name.replace('-', '_').upper()}", text)
    shown = _show(capsys)
    assert {name: shown[name]["value"] for name in given} == given
    assert {shown[name]["from"] for name in given} == {f"the variable {shown[name]['variable']}" for name in given}


def test_settings_files_name_files_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {name: value for name, value in VALUES.items() if value is not None}
    folder = tmp_path / "etc"
    folder.mkdir()
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    (folder / "serve.toml").write_text("\n".join(lines))
    shown = _show(capsys, "--config", "etc/serve.toml")
    paths = {name for name in given if isinstance(SETTINGS[name].type, click.Path)}
    assert all(shown[name]["value"] == value for name, value in given.items() if name not in paths)
    assert {shown[name]["value"] for name in paths} <= {"etc", "etc/here"}
    assert {shown[name]["from"] for name in given} == {"etc/serve.toml"}


def test_an_option_goes_before_a_variable_and_that_before_the_file_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve.toml").write_text("photos-waiting = 1\nreads_waiting = 2\nsearches-waiting = 3\n")
    monkeypatch.setenv("RETRIEVAL_SERVE_CONFIG", "serve.toml")
    monkeypatch.setenv("RETRIEVAL_SERVE_READS_WAITING", "20")
    monkeypatch.setenv("RETRIEVAL_SERVE_SEARCHES_WAITING", "30")
    shown = _show(capsys, "--searches-waiting", "300")
    found = {name: (shown[name]["value"], shown[name]["from"]) for name in shown}
    assert found["max-upload-pixels"] == (60_000_000, "default")
    assert found["photos-waiting"] == (1, "serve.toml")
    assert found["reads-waiting"] == (20, "the variable RETRIEVAL_SERVE_READS_WAITING")
    assert found["searches-waiting"] == (300, "option")
    assert found["config"] == ("serve.toml", "the variable RETRIEVAL_SERVE_CONFIG")


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RETRIEVAL_TOKEN", SECRET)
    assert main(["serve", "nowhere", "--show-config"]) == 0
    text = capsys.readouterr().out
    assert SECRET not in text
    assert "(set, and not shown)  the variable RETRIEVAL_TOKEN" in text
    assert _show(capsys, "--token", SECRET)["token"]["value"] == "(set, and not shown)"


def test_unknown_variables_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RETRIEVAL_SERVE_PHOTO_WAITING", "64")
    message = "unknown variable RETRIEVAL_SERVE_PHOTO_WAITING; did you mean RETRIEVAL_SERVE_PHOTOS_WAITING?"
    assert message in _fail(capsys, code=2)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("photo-waiting = 64", "photo-waiting: no such option; did you mean photos-waiting?"),
        ("photos-waiting = 64.5", "photos-waiting: '64.5' is not a valid integer"),
        ("allowed-host = 'a'", 'allowed-host: expected a list of texts, ["a", "b"], got'),
        (f"token = '{SECRET}'", "token: a secret lies in a file of its own"),
        ("config = 'other.toml'", "config: no such option"),
        ("[limits]\nport = 1", "[limits] is a table; write options without one, such as photos-waiting = 64"),
        ("port = ", "expected TOML such as photos-waiting = 64"),
    ],
)
def test_wrong_lines_are_refused(line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "serve.toml").write_text(line)
    message = _fail(capsys, "--config", "serve.toml", code=1)
    assert message.startswith(f"error: serve.toml: {told}")
    assert SECRET not in message


def test_a_value_out_of_range_is_told_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve.toml").write_text("photos-waiting = 0")
    told = _fail(capsys, "--config", "serve.toml", code=2)
    assert "--photos-waiting must be at least 1, got 0 (from serve.toml)" in told
    monkeypatch.setenv("RETRIEVAL_SERVE_PORT", "99999")
    told = _fail(capsys, "--token-file", "token", code=2)
    assert "--port 99999: a port is a number in 0..65535" in told
    assert "(from the variable RETRIEVAL_SERVE_PORT)" in told
    assert not (tmp_path / "token").exists()
