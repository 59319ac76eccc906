"""`retrieval mcp --http` with tokens: what each opens to the protocol's own client over real HTTP, and until when."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="needs the extra `ui`")
pytest.importorskip("mcp", reason="needs the extra `agents`")
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from retrieval_app.api.security.token_file import add_token, revoke_token
from retrieval_app.review.log_files import read_log
from tests.forked import ForkedCommand, run
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import Answer, ask_on

PATIENCE_S = 5
MODES = ["auto", "legacy"]  # without sessions, and with
BEGIN = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}  # fmt: skip
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
TAKES = {"Accept": "application/json, text/event-stream"}
DECISION = {"image_id": 1, "decision": "change", "label": "green"}


@dataclass
class Agents:
    """A running server for agents."""

    process: ForkedCommand
    url: str
    gallery: Path
    log: Path

    @property
    def port(self) -> int:
        """That it listens on."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def ask(self, token: str | None = None, *, path: str = "/mcp", **headers: str) -> Answer:
        """One request as it is, without the protocol's client."""
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {name.replace("_", "-"): text for name, text in headers.items()}
            return ask_on(
                connection,
                "POST",
                path,
                json=PING if "Mcp_Session_Id" in headers else BEGIN,
                headers={**TAKES, **bearer, **sent},
            )
        finally:
            connection.close()

    def call(
        self, token: str | None, tool: str, mode: str = "auto", headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Any:  # fmt: skip
        """What a tool answers to the protocol's client; the text of its refusal."""

        async def call() -> Any:
            bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
            url = f"http://127.0.0.1:{self.port}/mcp"
            async with (
                httpx2.AsyncClient(headers={**bearer, **(headers or {})}) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                result = await client.call_tool(tool, arguments)
                return result.content[0].text if result.is_error else result.structured_content

        return asyncio.run(call())


@contextmanager
def _serve(gallery: Path, *options: str, log: Path) -> Iterator[Agents]:
    output, written = os.pipe()
    with log.open("a") as errors, open(output) as announced:
        words = ["mcp", str(gallery), "--http", "0", "--json", *options]
        process = ForkedCommand(words, stdout=written, stderr=errors.fileno())
        os.close(written)
        try:
            line = announced.readline()
            assert line, f"the server did not start: {log.read_text()}"
            yield Agents(process, json.loads(line)["url"], gallery, log)
        finally:
            process.terminate()
            assert process.wait(40) == 0


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tokens by name; `file` is where they are kept."""
    file = tmp_path_factory.mktemp("team") / "team.tokens"
    people = {"reader": "read", "reviewer": "review", "admin": "write", "watcher": "metrics"}
    return {**{name: add_token(file, name, may=[may])[1] for name, may in people.items()}, "file": str(file)}


@pytest.fixture(scope="module")
def agents(team: dict[str, str], tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Agents]:
    """A server for all machines, with all of these tokens, where agents may decide."""
    gallery = build_small_gallery(tmp_path_factory.mktemp("agents"), model=tiny_model)
    options = ("--host", "0.0.0.0", "--tokens", team["file"], "--writable", "--allowed-host", "photos.example.org")
    with _serve(gallery, *options, log=gallery.parent / "log") as agents:
        yield agents
        assert "Traceback" not in agents.log.read_text()
        assert not any(token in agents.log.read_text() for name, token in team.items() if name != "file")


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_may_read_searches_and_decides_nothing(
    agents: Agents, team: dict[str, str], mode: str
) -> None:
    assert agents.call(team["reader"], "describe_gallery", mode)["images"] > 0
    assert agents.call(team["reader"], "search_like_image", mode, image_id=1, k=2)["result"]
    refused = agents.call(team["reader"], "decide_label", mode, **DECISION)
    assert "this token may only read" in refused


@pytest.mark.parametrize(("who", "mode"), [("reviewer", "auto"), ("admin", "legacy")])
def test_a_token_that_may_review_decides_and_is_named_in_the_log(
    agents: Agents, team: dict[str, str], mode: str, who: str
) -> None:
    assert "step" in agents.call(team[who], "decide_label", mode, **DECISION)
    *_, line = [line for line in read_log(agents.gallery) if line["what"] == "decide-labels"]
    assert (line["who"], line["from"], line["decisions"][0]["label"]) == (who, "127.0.0.1", "green")
    assert re.fullmatch("[0-9a-f]{16}", line["request"])


def test_without_a_token_nothing_is_told_and_how_to_bring_one_is(agents: Agents, team: dict[str, str]) -> None:
    for token in (None, "a-guess-of-sixteen-or-more"):
        answer = agents.ask(token)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "unauthorized"
        assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert agents.ask(team["watcher"]).status == 403
    assert agents.ask(team["reader"]).status == 200
    elsewhere = agents.ask(None, path="/.well-known/oauth-protected-resource/mcp")
    assert elsewhere.status == 404


def test_only_its_names_are_answered_to_and_no_page_of_another_site(agents: Agents, team: dict[str, str]) -> None:
    token = team["reader"]
    assert agents.ask(token, Host="photos.example.org").status == 200
    assert agents.ask(token, Host="evil.example").status == 421
    assert agents.ask(token, Origin="https://evil.example").status == 403


def test_a_token_ends_while_the_server_runs_in_the_middle_of_a_session_too(
    agents: Agents, team: dict[str, str]
) -> None:
    file = Path(team["file"])
    _, token = add_token(file, "guest", may=["read"])
    time.sleep(1)
    begun = agents.ask(token)
    session = {"Mcp_Session_Id": begun.headers["mcp-session-id"]}
    assert agents.ask(token, **session).status == 200
    assert agents.ask(team["reader"], **session).status == 404  # it is another's
    revoke_token(file, "guest")
    changed = time.monotonic()
    while agents.ask(token, **session).status != 401:
        assert time.monotonic() - changed < PATIENCE_S, "it still opens"
        time.sleep(0.1)
    assert agents.ask(team["reader"]).status == 200


def test_heads_without_end_are_cut_off_here_too(agents: Agents) -> None:
    with socket.create_connection(("127.0.0.1", agents.port), timeout=30) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"a" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431")


def test_one_token_for_all_is_made_and_may_everything(tmp_path: Path, tiny_model: Path) -> None:
    gallery, file = build_small_gallery(tmp_path, model=tiny_model), tmp_path / "token"
    with _serve(gallery, "--token-file", str(file), "--writable", log=tmp_path / "log") as agents:
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        assert agents.ask(None).status == 401
        assert "step" in agents.call(token, "decide_label", **DECISION)
        session = agents.ask(token).headers["mcp-session-id"]
        head = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nMcp-Session-Id: {session}\r\nAuthorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", agents.port), timeout=30) as waiting:
            waiting.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            assert waiting.recv(1000).startswith(b"HTTP/1.1 200")
            agents.process.terminate()
            assert agents.process.wait(40) == 0
        assert "Traceback" not in agents.log.read_text()
    told = [(line["who"], line["what"]) for line in read_log(gallery) if line["what"] == "decide-labels"]
    assert told == [("the token", "decide-labels")]


def test_without_tokens_programs_of_this_machine_alone_decide(tmp_path: Path, tiny_model: Path) -> None:
    gallery = build_small_gallery(tmp_path, model=tiny_model)
    with _serve(gallery, "--writable", log=tmp_path / "log") as agents:
        assert "step" in agents.call(None, "decide_label", **DECISION)
        passed_on = agents.call(None, "decide_label", headers={"X-Forwarded-For": "192.0.2.7"}, **DECISION)
        assert "decisions are taken only on the machine itself" in passed_on
    told = [(line["who"], line["from"]) for line in read_log(gallery)]
    assert told == [("an agent", "127.0.0.1")]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--http", "0", "--host", "0.0.0.0"), 1, "a token is needed"),
        (("--tokens", "x"), 2, "are for --http PORT"),
        (("--http", "0", "--tokens", "x", "--token-file", "y"), 2, "--tokens takes the place of --token-file"),
        (("--http", "0", "--tokens", "nothing.tokens"), 1, "nothing.tokens"),
        (("--http", "0", "--allowed-host", "a/b"), 1, "--allowed-host a/b"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(
    agents: Agents, options: tuple[str, ...], code: int, message: str
) -> None:
    told = run(["mcp", str(agents.gallery), *options])
    assert (told.returncode, told.stdout) == (code, "")
    assert message in told.stderr
