"""The application of a server with tokens of names and rights: what each opens, by its own description."""

import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval_app.api.security.tokens import add_token, revoke_token, rotate_token
from retrieval_app.review.activity_log import read_log
from retrieval_app.server.options import ServeOptions
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_app import App, open_app
from tests.waiting import wait_for

PEOPLE = {"reader": "read", "reviewer": "review", "admin": "write"}
INCLUDED = {"reader": {"read"}, "reviewer": {"read", "review"}, "admin": {"read", "review", "write"}}
CHANGES = {
    "add_image": "write",
    "remove_image": "write",
    "update_gallery": "write",
    "accept_verdicts": "review",
    "decide_labels": "review",
    "draw_sample": "review",
    "undo_label_decisions": "review",
    "decide_duplicates": "review",
    "set_labels": "review",
    "drop_many": "review",
    "change_tag": "review",
    "undo_tags": "review",
    "save_search": "review",
    "delete_search": "review",
    "keep_by_rule": "review",
    "mend_leaks": "review",
    "undo_duplicate_decisions": "review",
    "cancel_job": "write",
    "move_copies": "write",
}
"""Every operation that more than reads; whoever adds one says here what it needs."""
ASKS_ONLY = {"search", "search_by_image", "embed_photo", "keep_photo", "export_images"}
"""Operations that are sent a body, and change nothing."""
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tokens by name; `file` is where they are kept."""
    file = tmp_path_factory.mktemp("team") / "team.tokens"
    tokens = {name: add_token(file, name, may=[may])[1] for name, may in PEOPLE.items()}
    return {**tokens, "file": str(file)}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return build_small_gallery(tmp_path_factory.mktemp("served"), model=tiny_model)


@pytest.fixture(scope="module")
def server(gallery: Path, team: dict[str, str]) -> Iterator[App]:
    allowed: dict[str, Any] = {"writable": True, "disk_changes": gallery.parent / "moved"}
    options = ServeOptions.of(gallery, **allowed, tokens=Path(team["file"]))
    with open_app(options) as app:
        yield app


def test_every_operation_opens_to_the_rights_described_only(server: App, team: dict[str, str]) -> None:
    operations = [
        (method.upper(), re.sub(r"\{[^}]*\}", "999999", path), operation)
        for path, methods in server.ask("GET", "/v1/openapi.json", token=team["reader"]).json()["paths"].items()
        for method, operation in methods.items()
    ]
    assert {operation["operationId"] for _, _, operation in operations} > {*CHANGES, *ASKS_ONLY}
    wrong = []
    for method, path, operation in operations:
        asked = operation.get("security")
        needed = asked[0]["token"] if asked else []
        name = operation["operationId"]
        assert needed == [CHANGES.get(name, "read")] or path in ("/v1/health", "/v1/ready"), name
        assert method == "GET" or name in {*CHANGES, *ASKS_ONLY}, f"{name}: say in this file what it needs"
        for who, rights in INCLUDED.items():
            # What may pass fails for want of a body, or of such an id.
            answer = server.ask(method, path, token=team[who])
            if (answer.status != 403) != (set(needed) <= rights):
                wrong.append((name, who, answer.status))
        assert not needed or server.ask(method, path).status == 401, name
    assert not wrong


def _sign_in(server: App, token: str) -> dict[str, str]:
    answer = server.ask("POST", "/", body=f"token={token}".encode(), headers=FORM)
    assert answer.status == 303
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_what_the_file_of_tokens_says_makes_no_cookie(server: App, team: dict[str, str]) -> None:
    file = Path(team["file"])
    told = json.loads(file.read_text())
    owner = next(entry["sha256"] for entry in told["tokens"] if entry["name"] == "admin")
    text = f"session.{'x' * 22}.{owner}.{int(time.time()) + 1000}"
    real = _sign_in(server, team["admin"])["Cookie"]
    salt = b"sessions" + told["salt"].encode()
    for key in (hashlib.sha256(salt).digest(), hmac.digest(b"", salt, "sha256")):
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        forged = f"{real.partition('=')[0]}={text}.{signature}"
        assert server.ask("GET", "/v1/gallery", headers={"Cookie": forged}).status == 401
    kept = file.with_name(f"{file.name}.sessions")
    assert (kept.stat().st_mode & 0o777, (kept / "secret").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("way", ["revoked", "rotated"])
def test_a_token_and_its_sessions_end_while_the_server_runs(server: App, team: dict[str, str], way: str) -> None:
    file, name = Path(team["file"]), f"guest-{way}"
    _, token = add_token(file, name, may=["review"])
    cookie, bearer = _sign_in(server, token), {"Authorization": f"Bearer {token}"}
    other = _sign_in(server, team["reader"])
    assert server.ask("GET", "/v1/gallery", headers=cookie).json()["permissions"]["review"]
    if way == "revoked":
        revoke_token(file, name)
    else:
        _, fresh = rotate_token(file, name)
    for headers in (cookie, bearer):
        assert server.ask("GET", "/v1/gallery", headers=headers).status == 401
    if way == "rotated":
        assert server.ask("GET", "/v1/gallery", token=fresh).status == 200
        assert server.ask("GET", "/v1/gallery", headers=cookie).status == 401  # of the one before
    assert server.ask("GET", "/v1/gallery", headers=other).status == 200


def test_a_damaged_file_opens_nothing(server: App, team: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    file = Path(team["file"])
    sound = file.read_bytes()
    cookie = _sign_in(server, team["admin"])
    try:
        for damaged in (b"", b"{}", sound[:-40], sound.replace(b'"review"', b'"all"')):
            file.write_bytes(damaged)
            assert server.ask("GET", "/v1/gallery", headers=cookie).status == 401
            assert server.ask("GET", "/v1/gallery", token="").status == 401
        assert "no token opens anything" in caplog.text
        assert not any(token in caplog.text for name, token in team.items() if name != "file")
    finally:
        file.write_bytes(sound)
    assert server.ask("GET", "/v1/gallery", token=team["admin"]).status == 200


def test_what_was_done_is_logged_and_refusals_are_not(server: App, team: dict[str, str], gallery: Path) -> None:
    before = len(read_log(gallery))
    images = server.ask("GET", "/v1/images?limit=2&include=label", token=team["reader"]).json()["images"]
    ids = [image["id"] for image in images]
    body = {"decisions": [{"image_id": ids[0], "decision": "change", "label": "hat"}]}
    refused = server.ask("POST", "/v1/labels/decisions", token=team["reader"], json=body)
    assert refused.status == 403
    named = {"X-Request-Id": "decided-1", "X-Forwarded-For": "192.0.2.7"}
    decided = server.ask("POST", "/v1/labels/decisions", token=team["reviewer"], json=body, headers=named)
    assert decided.status == 200
    assert server.ask("POST", "/v1/labels/undo", token=team["admin"], json={}).json()["undone"] == [ids[0]]
    exported = server.ask("POST", "/v1/export", token=team["reader"], json={"ids": ids, "format": "csv"})
    assert exported.status == 200
    job = server.ask("POST", "/v1/update", token=team["admin"]).json()["job"]
    [ended] = _await_lines(gallery, "job-done", job)
    assert (ended["who"], ended["kind"]) == ("admin", "update")
    first, undone, export, update = [line for line in read_log(gallery)[before:] if line["what"] != "job-done"]
    assert first == {
        "at": first["at"],
        "who": "reviewer",
        "from": "192.0.2.7",
        "what": "decide-labels",
        "request": "decided-1",
        "step": decided.json()["step"],
        "decisions": [{"image": ids[0], "decision": "change", "label": "hat"}],
    }
    assert (undone["who"], undone["what"], undone["images"]) == ("admin", "undo-labels", [ids[0]])
    assert (export["who"], export["what"], export["images"]) == ("reader", "export", ids)
    assert (update["who"], update["what"], update["job"]) == ("admin", "update", job)


def _await_lines(gallery: Path, what: str, job: str = "", *, count: int = 1) -> list[dict[str, Any]]:
    """So many lines of a kind, once they are there: nobody waits for these to be on the disk."""

    def find() -> list[dict[str, Any]]:
        return [line for line in read_log(gallery) if line["what"] == what and line.get("job", "") == job]

    return wait_for(lambda: lines if len(lines := find()) >= count else [])


def test_visits_are_logged_and_a_guesser_once_a_minute(server: App, team: dict[str, str], gallery: Path) -> None:
    before = len(read_log(gallery))
    cookie = _sign_in(server, team["reader"])
    server.ask("POST", "/", body=b"sign_out=", headers={**FORM, **cookie})
    server.ask("POST", "/", body=b"sign_out=", headers={**FORM, **cookie})  # which ends nothing any more
    for number in range(3):
        guessed = {"Authorization": f"Bearer guess-{number}", "X-Forwarded-For": "198.51.100.7"}
        assert server.ask("GET", "/v1/gallery", headers=guessed).status == 401
    typed = {**FORM, "X-Forwarded-For": "198.51.100.8"}
    assert server.ask("POST", "/", body=b"token=guess-7", headers=typed).status == 401
    [*_, last] = _await_lines(gallery, "sign-in-refused", count=2)
    assert (last["who"], last["from"], last["by"], last["tries"]) == ("a visitor", "198.51.100.8", "token", 1)
    new = read_log(gallery)[before:]
    lines = [line for line in new if not line["what"].startswith("job") and line["request"]]  # a count has no request
    assert [(line["what"], line["who"], line["from"]) for line in lines] == [
        ("sign-in", "reader", "127.0.0.1"),
        ("sign-out", "reader", "127.0.0.1"),
        ("sign-in-refused", "a visitor", "198.51.100.7"),
        ("sign-in-refused", "a visitor", "198.51.100.8"),
    ]
    assert lines[0]["by"] == "page"
    assert "guess" not in str(lines)
