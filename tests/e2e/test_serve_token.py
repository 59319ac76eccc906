"""A server that asks for a token, as its user and as an attacker meet it: where the token shows, and who gets in."""

from __future__ import annotations

import os
import pty
import re
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
