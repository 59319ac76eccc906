from __future__ import annotations

import os
import pty
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from index.errors import InputError
from retrieval_app.api.security.tokens import check_token
from retrieval_app.commands.serve_command import serve
from retrieval_app.server import serve_token
from retrieval_app.server.serve_token import choose_token

OWN = "please-choose-your-own"


def _choose(
    *arguments: str, needed: bool = True, environment: dict[str, str] | None = None
) -> click.testing.Result:
    @click.command()
    @click.option("--token", envvar="RETRIEVAL_TOKEN")
    @click.option("--token-file", type=click.Path(path_type=Path))
    @click.option("--no-token", is_flag=True)
    def command(token: str | None, token_file: Path | None, no_token: bool) -> None:
        del token
        chosen = choose_token(click.get_current_context(), file=token_file, no_token=no_token, needed=needed)
        click.echo(str(chosen))

    runner = CliRunner(env={"RETRIEVAL_TOKEN": None, **(environment or {})})
    return runner.invoke(command, arguments, standalone_mode=False)


def test_a_token_of_the_variable_is_taken_in_silence_and_of_the_command_line_with_a_word() -> None:
    result = _choose(environment={"RETRIEVAL_TOKEN": OWN})
    assert (result.stdout, result.stderr) == (f"{OWN}\n", "")
    result = _choose("--token", OWN)
    assert result.stdout == f"{OWN}\n"
    assert "Lists of processes show --token" in result.stderr
    assert OWN not in result.stderr


def test_a_file_is_made_told_of_without_its_token_and_goes_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first, second = (
        _choose("--token-file", str(file), environment=env) for env in (None, {"RETRIEVAL_TOKEN": OWN})
    )
    token = file.read_text().strip()
    check_token(token)
    assert first.stdout == second.stdout == f"{token}\n"
    assert "has a new token" in first.stderr
    assert token not in first.stderr
    assert second.stderr == ""
    file.chmod(0o644)
    assert "chmod 600" in _choose("--token-file", str(file)).stderr


def test_none_is_made_where_none_is_needed_or_wanted() -> None:
    assert _choose(needed=False).stdout == "None\n"
    assert _choose("--no-token").stdout == "None\n"
    assert _choose("--no-token", environment={"RETRIEVAL_TOKEN": OWN}).stdout == "None\n"


@pytest.mark.parametrize(
    "arguments",
    [("--token", OWN, "--no-token"), ("--token", OWN, "--token-file", "x"), ("--token-file", "x", "--no-token")],
)
def test_options_that_exclude_one_another_are_refused(arguments: tuple[str, ...]) -> None:
    result = _choose(*arguments)
    assert isinstance(result.exception, click.UsageError)
    assert not Path("x").exists()


def test_no_new_token_is_told_to_what_is_no_terminal() -> None:
    result = _choose()
    assert result.stdout == ""
    assert "--token-file FILE" in str(result.exception)
    for arguments in (("--writable",), ("--host", "0.0.0.0")):
        refused = CliRunner(env={"RETRIEVAL_TOKEN": None}).invoke(serve, ["gallery", *arguments])
        assert isinstance(refused.exception, InputError)
        assert "a token is needed" in str(refused.exception)


def test_a_new_token_is_shown_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(serve_token.sys, "stderr", terminal)
        token = serve_token._tell_new()
        terminal.flush()
    told = os.read(leader, 1000).decode()
    os.close(leader)
    assert re.findall(r"\b[0-9a-f]{32}\b", told) == [token]
    assert capfd.readouterr() == ("", "")
