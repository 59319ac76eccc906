"""`retrieval mcp --http` with tokens: what each opens to the protocol's own client over real HTTP, and until when."""

import asyncio
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from retrieval_app.api.security.tokens import add_token, revoke_token
from retrieval_app.review.activity_log import read_log
from tests.forked import run
from tests.serving_server import Answer, Server, serve
from tests.waiting import wait_for

MODES = ["auto", "legacy"]  # without sessions, and with
BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
TAKES = {"Accept": "application/json, text/event-stream"}
DECISION = {"image_id": 1, "decision": "change", "label": "green"}


def ask(agents: Server, token: str | None = None, *, path: str = "/mcp", **headers: str) -> Answer:
    """One request as it is, without the protocol's client."""
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    sent = {**TAKES, **bearer, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return agents.ask("POST", path, json=PING if "Mcp_Session_Id" in headers else BEGIN, headers=sent)


def call(
    agents: Server,
    token: str | None,
    tool: str,
    mode: str = "auto",
    headers: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """What a tool answers to the protocol's client; the text of its refusal."""
    import httpx2  # like the client, which takes a second, for this alone
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def call() -> Any:
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers={**bearer, **(headers or {})}) as http,
            Client(streamable_http_client(f"{agents.url}/mcp", http_client=http), mode=mode) as client,
        ):
            result = await client.call_tool(tool, arguments)
            return result.content[0].text if result.is_error else result.structured_content

    return asyncio.run(call())


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tokens by name; `file` is where they are kept."""
    file = tmp_path_factory.mktemp("team") / "team.tokens"
    people = {"reader": "read", "reviewer": "review", "admin": "write", "watcher": "metrics"}
    return {**{name: add_token(file, name, may=[may])[1] for name, may in people.items()}, "file": str(file)}


@pytest.fixture(scope="module")
def agents(team: dict[str, str], gallery: Path) -> Iterator[Server]:
    """A server for all machines, with all of these tokens, where agents may decide."""
    options = ("--host", "0.0.0.0", "--tokens", team["file"], "--writable", "--allowed-host", "photos.example.org")
    with serve(gallery, *options, log=gallery.parent / "log", command="mcp") as agents:
        yield agents
        assert "Traceback" not in agents.log.read_text()
        assert not any(token in agents.log.read_text() for name, token in team.items() if name != "file")


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_may_read_searches_and_decides_nothing(agents: Server, team: dict[str, str], mode: str) -> None:
    assert call(agents, team["reader"], "describe_gallery", mode)["images"] > 0
    assert call(agents, team["reader"], "search_like_image", mode, image_id=1, k=2)["result"]
    refused = call(agents, team["reader"], "decide_label", mode, **DECISION)
    assert "this token may only read" in refused


@pytest.mark.parametrize(("who", "mode"), [("reviewer", "auto"), ("admin", "legacy")])
def test_a_token_that_may_review_decides_and_is_named_in_the_log(
    agents: Server, team: dict[str, str], gallery: Path, mode: str, who: str
) -> None:
    assert "step" in call(agents, team[who], "decide_label", mode, **DECISION)
    *_, line = [line for line in read_log(gallery) if line["what"] == "decide-labels"]
    assert (line["who"], line["from"], line["decisions"][0]["label"]) == (who, "127.0.0.1", "green")
    assert re.fullmatch("[0-9a-f]{16}", line["request"])


def test_without_a_token_nothing_is_told_and_how_to_bring_one_is(agents: Server, team: dict[str, str]) -> None:
    for token in (None, "a-guess-of-sixteen-or-more"):
        answer = ask(agents, token)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "unauthorized"
        assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert ask(agents, team["watcher"]).status == 403
    assert ask(agents, team["reader"]).status == 200
    elsewhere = ask(agents, None, path="/.well-known/oauth-protected-resource/mcp")
    assert elsewhere.status == 404


def test_only_its_names_are_answered_to_and_no_page_of_another_site(agents: Server, team: dict[str, str]) -> None:
    token = team["reader"]
    assert ask(agents, token, Host="photos.example.org").status == 200
    assert ask(agents, token, Host="evil.example").status == 421
    assert ask(agents, token, Origin="https://evil.example").status == 403


def test_a_token_ends_while_the_server_runs_even_amid_a_session(agents: Server, team: dict[str, str]) -> None:
    file = Path(team["file"])
    _, token = add_token(file, "guest", may=["read"])
    wait_for(lambda: ask(agents, token).status == 200)
    begun = ask(agents, token)
    session = {"Mcp_Session_Id": begun.headers["mcp-session-id"]}
    assert ask(agents, token, **session).status == 200
    assert ask(agents, team["reader"], **session).status == 404  # it is another's
    revoke_token(file, "guest")
    wait_for(lambda: ask(agents, token, **session).status == 401)
    assert ask(agents, team["reader"]).status == 200


def test_heads_without_end_are_cut_off_here_too(agents: Server) -> None:
    with socket.create_connection(("127.0.0.1", agents.port), timeout=30) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"a" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_one_token_for_all_is_made_and_may_everything(tmp_path: Path, gallery: Path) -> None:
    gallery, file = (
        shutil.copytree(gallery, tmp_path / "small", ignore=shutil.ignore_patterns("annotations")),
        tmp_path / "token",
    )
    with serve(gallery, "--token-file", str(file), "--writable", log=tmp_path / "log", command="mcp") as agents:
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        assert ask(agents, None).status == 401
        assert "step" in call(agents, token, "decide_label", **DECISION)
        session = ask(agents, token).headers["mcp-session-id"]
        head = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nMcp-Session-Id: {session}\r\nAuthorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", agents.port), timeout=30) as waiting:
            waiting.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            assert waiting.recv(1000).startswith(b"HTTP/1.1 200")
            assert agents.stop() == 0
        assert "Traceback" not in agents.log.read_text()
    told = [(line["who"], line["what"]) for line in read_log(gallery) if line["what"] == "decide-labels"]
    assert told == [("the token", "decide-labels")]


def test_without_tokens_programs_of_this_machine_alone_decide(tmp_path: Path, gallery: Path) -> None:
    gallery = shutil.copytree(gallery, tmp_path / "small", ignore=shutil.ignore_patterns("annotations"))
    with serve(gallery, "--writable", log=tmp_path / "log", command="mcp") as agents:
        assert "step" in call(agents, None, "decide_label", **DECISION)
        passed_on = call(agents, None, "decide_label", headers={"X-Forwarded-For": "192.0.2.7"}, **DECISION)
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
def test_what_cannot_be_served_is_refused(gallery: Path, options: tuple[str, ...], code: int, message: str) -> None:
    told = run(["mcp", gallery, *options])
    assert (told.returncode, told.stdout) == (code, "")
    assert message in told.stderr
