import ipaddress
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from index.errors import GalleryError, InputError
from retrieval_app.api.security.tokens import check_token
from retrieval_app.commands import serve_arguments
from retrieval_app.commands.serve_arguments import choose_token
from retrieval_app.commands.serve_command import serve
from retrieval_app.server.options import ServeOptions
from retrieval_app.server.serve import _watching, choose_shown, listen, serve_gallery, write_url
from tests.waiting import wait_for

SERVE = """
import sys
from retrieval_app.commands.serve_command import serve
serve.main([sys.argv[1], "--port", "0", "--json"], standalone_mode=False)
print([name for name in ("torch", "torchvision", "safetensors", "onnx") if name in sys.modules])
"""


def test_a_taken_port_and_a_host_of_another_machine_are_named(small_gallery: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        with pytest.raises(InputError, match=r"--host 192\.0\.2\.1"):
            listen("192.0.2.1", 0)
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: already in use"):
            serve_gallery(ServeOptions.of(small_gallery, port=port))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 65536}, r"--port 65536: a port is a number in 0\.\.65535"),
        ({"port": -1}, "--port -1: a port is"),
        ({"token": "fifteen-letters"}, "a token has 16 to 512 characters"),
        ({"allowed_hosts": ("http://photos.example.org",)}, "--allowed-host http://photos"),
        ({"writable": True}, "--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ServeOptions.of(Path("gallery"), **options)


def test_a_folder_that_is_no_gallery_is_refused(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(GalleryError, match="an empty folder"):
        serve_gallery(ServeOptions.of(tmp_path, port=taken.getsockname()[1]))


@pytest.mark.slow
def test_the_command_announces_its_url_never_loads_torch_and_ends_cleanly_on_ctrl_c(small_gallery: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra `ui`")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(small_gallery)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"app-frame" in answer.read()
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as open_page:  # which waits for more
            open_page.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert open_page.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "[]\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_in_the_place_of_all_addresses_one_is_told_that_leads_to_this_machine(host: str) -> None:
    shown = choose_shown(host)
    assert ipaddress.ip_address(shown).version == ipaddress.ip_address(host).version
    assert not ipaddress.ip_address(shown).is_unspecified
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection((shown, listener.getsockname()[1]), timeout=10):
        pass


def test_addresses_of_ipv6_stand_in_brackets_and_paths_behind() -> None:
    assert write_url("2001:db8::1", 80) == "http://[2001:db8::1]:80/"
    assert choose_shown("192.0.2.7") == "192.0.2.7"
    assert write_url("192.0.2.1", 7860, root_path="/photos") == "http://192.0.2.1:7860/photos/"


OWN = "please-choose-your-own"


def _choose(*arguments: str, needed: bool = True, environment: dict[str, str] | None = None) -> click.testing.Result:
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
    first, second = (_choose("--token-file", str(file), environment=env) for env in (None, {"RETRIEVAL_TOKEN": OWN}))
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
        monkeypatch.setattr(serve_arguments.sys, "stderr", terminal)
        token = serve_arguments._tell_new()
        terminal.flush()
    told = os.read(leader, 1000).decode()
    os.close(leader)
    assert re.findall(r"\b[0-9a-f]{32}\b", told) == [token]
    assert capfd.readouterr() == ("", "")


def test_watching_begins_again_after_its_process_could_not_begin(
    small_gallery: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    program = tmp_path / "watch"
    monkeypatch.setattr("retrieval_app.server.serve._WATCH", (str(program),))
    monkeypatch.setattr("retrieval_app.server.serve._PAUSE_S", 0.05)
    with _watching(ServeOptions.of(small_gallery, watch=True)):
        wait_for(lambda: "watching could not begin" in caplog.text)
        (tmp_path / "draft").write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\n")
        (tmp_path / "draft").chmod(0o700)
        (tmp_path / "draft").rename(program)
        wait_for(lambda: (tmp_path / "begun").exists())
