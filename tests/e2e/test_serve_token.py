"""A server that asks for a token, as its user and as an attacker meet it: where the token shows, and who gets in."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

if "CI" not in os.environ:
    pytest.importorskip("gradio", reason="needs the extra `ui`")

from retrieval_app.review.log_files import read_log
from retrieval_app.server.own_addresses import choose_shown
from tests.serving_server import ROOT, TOKEN, Server, serve

COMMAND = (sys.executable, "-m", "retrieval_app", "serve")
GUESS = "a-guess-of-sixteen-or-more"


@pytest.fixture(scope="module")
def asking(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, as it is told wrong tokens."""
    with serve(gallery, log=tmp_path_factory.mktemp("asking") / "log", token=TOKEN) as server:
        yield server
        log = server.log.read_text()
        assert GUESS not in log
        assert TOKEN not in log
        assert "Traceback" not in log


@contextmanager
def _run(gallery: Path, *options: str, errors: int, **environment: str) -> Iterator[tuple[Server, str]]:
    """A running server and the address that it printed; what it says else goes to the file `errors`."""
    inherited = {name: value for name, value in os.environ.items() if name != "RETRIEVAL_TOKEN"}
    process = subprocess.Popen(
        [*COMMAND, str(gallery), "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        port = int(address.partition("//")[2].partition("/")[0].rpartition(":")[2])
        yield Server(process, port, None, Path(os.devnull), address), address
    finally:
        process.terminate()
        process.wait(40)
        process.stdout.close()


def test_thousands_of_guesses_in_a_request_are_none(asking: Server) -> None:
    outsider = Server(asking.process, asking.port, None, asking.log, asking.output)
    guesses = [*(f"token={GUESS}{number:05}" for number in range(1500)), f"token={TOKEN}"]
    for path in ("/", "/gradio/", "/v1/gallery"):
        answer = outsider.get(f"{path}?{'&'.join(guesses)}")
        assert answer.status in (401, 414, 422), path
        assert "set-cookie" not in answer.headers
    started = time.monotonic()
    for _ in range(6):
        assert outsider.get("/v1/gallery", Authorization=f"Bearer {GUESS}").status == 401
    assert time.monotonic() - started > 2.5  # 0.1 + 0.2 + 0.4 + 0.8 + 1.6 and 2 seconds, less what a clock may err


def test_an_attack_delays_nobody_who_has_the_token(asking: Server) -> None:
    outsider = Server(asking.process, asking.port, None, asking.log, asking.output)

    def guess(number: int) -> int:
        return outsider.get("/v1/gallery", Authorization=f"Bearer {GUESS}{number}").status

    with ThreadPoolExecutor(24) as pool:
        guesses = [pool.submit(guess, number) for number in range(24)]
        time.sleep(0.5)
        answers = [asking.get("/v1/gallery")]
        under_way = sum(not future.done() for future in guesses)
        answers += [asking.get("/v1/gallery") for _ in range(19)]
        statuses = {future.result() for future in guesses}
    assert [answer.status for answer in answers] == [200] * 20
    assert under_way > 0  # the guesses wait, and the right token has not waited for them
    assert statuses <= {401, 429}
    assert 429 in statuses
    assert "a wrong token from 127.0.0.1" in asking.log.read_text()


def test_a_new_token_is_told_once_to_a_terminal_and_shows_nowhere_else(gallery: Path, tmp_path: Path) -> None:
    opener = tmp_path / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/opened\n')
    opener.chmod(0o755)
    leader, follower = pty.openpty()
    path = f"{tmp_path}:{os.environ['PATH']}"
    try:
        with _run(gallery, "--writable", "--open", errors=follower, PATH=path, BROWSER="") as (server, address):
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?code=[\w-]{43}", address)
            shown = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode()
            for _ in range(100):
                if (tmp_path / "opened").exists() and (tmp_path / "opened").read_text():
                    break
                time.sleep(0.1)
            told = os.read(leader, 10_000).decode()
            (token,) = re.findall(r"\b[0-9a-f]{32}\b", told)
            opened = (tmp_path / "opened").read_text()
            assert opened.strip() == address
            assert token not in shown + opened + address
            assert server.get("/v1/gallery", Authorization=f"Bearer {token}").status == 200
            assert server.get("/v1/gallery").status == 401
            assert server.get(f"/?{address.partition('?')[2]}").status == 303
    finally:
        os.close(leader)
        os.close(follower)
    *_, line = [line for line in read_log(gallery) if line["what"] == "sign-in"]
    assert (line["who"], line["from"], line["by"]) == ("the token", "127.0.0.1", "code")


@pytest.mark.parametrize("options", [("--writable",), ("--host", "0.0.0.0")])
def test_no_token_is_made_up_for_a_log(gallery: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "RETRIEVAL_TOKEN"}
    done = subprocess.run(
        [*COMMAND, str(gallery), "--port", "0", *options], capture_output=True, text=True, env=inherited, cwd=ROOT,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "--token-file FILE" in done.stderr


def test_a_file_of_the_token_is_made_and_the_json_address_opens_nothing(gallery: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with serve(gallery, "--writable", "--token-file", str(file), log=tmp_path / "log") as server:
        assert server.output == f'{{"url": "{server.url}/"}}\n'
        assert server.get("/").status == 401
        token = file.read_text().strip()
        assert server.get("/v1/gallery", Authorization=f"Bearer {token}").json()["can"]["write"] is True
        assert token not in (tmp_path / "log").read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_token_on_every_address_names_of_others_are_refused(gallery: Path, tmp_path: Path) -> None:
    options = ("--host", "0.0.0.0", "--no-token", "--allowed-host", "photos.example.org")
    with serve(gallery, *options, log=tmp_path / "log") as server:
        assert server.output == f'{{"url": "http://{choose_shown("0.0.0.0")}:{server.port}/"}}\n'
        for host in (f"127.0.0.1:{server.port}", "PHOTOS.example.org.", "photos.example.org:443", "localhost"):
            assert server.get("/v1/gallery", Host=host).status == 200, host
        for host in ("rebound.evil.example", "8.8.8.8", f"127.0.0.1.evil.example:{server.port}", "[::2]", ""):
            refused = server.get("/v1/gallery", Host=host)
            assert refused.status == 400, host
            assert "--allowed-host" in refused.json()["error"]["message"]
        assert server.get("/v1/gallery").json()["can"] == {"review": False, "write": False, "fetch": False}
        assert server.ask("POST", "/v1/labels/undo", json={}).status == 403
        said = server.log.read_text()
        assert f"http://{socket.gethostname()}:{server.port}/" in said
        assert "can search" in said


def test_behind_a_proxy_on_this_machine_nobody_decides_without_a_token(gallery: Path, tmp_path: Path) -> None:
    with serve(gallery, "--allowed-host", "photos.example.org", log=tmp_path / "log") as server:
        proxied = {"Host": "photos.example.org", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"}
        assert server.ask("POST", "/v1/labels/undo", json={}, headers=proxied).status == 403
        first = server.get("/v1/images?limit=1").json()["images"][0]["id"]
        told = server.get(f"/v1/images/{first}", **proxied)
        assert told.status == 200
        assert str(gallery.parent).encode() not in told.body
        assert str(gallery.parent).encode() in server.get(f"/v1/images/{first}").body
        assert server.get("/", **proxied).status == 200
        assert server.ask("POST", "/v1/labels/undo", json={}).status == 200
