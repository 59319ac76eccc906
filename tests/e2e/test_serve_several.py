"""Several galleries on one server: each with rights of its own, and nobody is told of one that is not theirs to see."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
from index.writing.build import update_gallery
from retrieval_app.api.security.token_file import add_token
from retrieval_app.review.log_files import read_log
from tests.conftest import draw_image
from tests.forked import run
from tests.gradio_clients import connect
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import Answer, Server, serve

PEOPLE = {
    "admin": ["write"], "anna": ["read", "review:shop"], "ben": ["read:shop"], "carl": ["write:fashion"],
    "watcher": ["metrics:shop"], "lost": ["read:elsewhere"],
}  # fmt: skip
COUNTS = {"shop": 19, "fashion": 20}  # the update leaves out what vanished
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ROOT = "/photos"
DECISION = {"decisions": [{"image_id": 1, "decision": "keep"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Two galleries, of which one has other images too, a file of tokens, and what the server wrote."""
    folder = tmp_path_factory.mktemp("several")
    for name in COUNTS:
        (folder / name).mkdir()
        build_small_gallery(folder / name, model=tiny_model)
    for seed in (7001, 7002):
        draw_image((10, 250, 250), seed=seed).save(folder / f"fashion/images/red/{seed}.png")
    update_gallery(folder / "fashion/small")
    return folder


@pytest.fixture(scope="module")
def team(folder: Path) -> dict[str, str]:
    """The tokens by name."""
    return {name: add_token(folder / "team.tokens", name, may=may)[1] for name, may in PEOPLE.items()}


@pytest.fixture(scope="module")
def server(folder: Path, team: dict[str, str]) -> Iterator[Server]:
    """A server of both galleries."""
    with _serve_both(folder, team, "--writable", "--access-log", f"{folder}/access.log", log="log") as server:
        yield server


@pytest.fixture(scope="module")
def below(folder: Path, team: dict[str, str]) -> Iterator[Server]:
    """One that lives below a path, which a proxy may take away or leave."""
    with _serve_both(folder, team, "--root-path", ROOT, log="log-below") as server:
        yield server


@contextmanager
def _serve_both(folder: Path, team: dict[str, str], *options: str, log: str) -> Iterator[Server]:
    galleries = [f"{name}={folder}/{name}/small" for name in COUNTS]
    with serve(*galleries, "--tokens", f"{folder}/team.tokens", *options, log=folder / log) as server:
        yield server
        assert "Traceback" not in server.log.read_text()
        assert not any(token in server.log.read_text() for token in team.values())


def _ask(server: Server, token: str | None, method: str, path: str, **more: Any) -> Answer:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return server.ask(method, path, headers={**headers, **more.pop("headers", {})}, **more)


def _list(server: Server, token: str) -> list[dict[str, Any]]:
    answer = _ask(server, token, "GET", "/v1/galleries")
    assert answer.status == 200
    return list(answer.json()["galleries"])


def test_each_is_listed_to_those_who_may_look_into_it_with_what_they_may(
    server: Server, team: dict[str, str]
) -> None:
    told = {
        who: {entry["name"]: (entry["can"]["review"], entry["can"]["write"]) for entry in _list(server, team[who])}
        for who in ("admin", "anna", "ben", "carl")
    }
    assert told == {
        "admin": {"shop": (True, True), "fashion": (True, True)},
        "anna": {"shop": (True, False), "fashion": (False, False)},
        "ben": {"shop": (False, False)},
        "carl": {"fashion": (True, True)},
    }
    page = _ask(server, team["ben"], "GET", "/").body.decode()
    assert ('href="g/shop/"' in page, "fashion" in page) == (True, False)
    for who in ("watcher", "lost"):
        assert _ask(server, team[who], "GET", "/v1/galleries").status == 403
    entry = _list(server, team["ben"])[0]
    assert (entry["path"], entry["state"], entry["images"], len(entry["shown"])) == (
        "g/shop/",
        "ready",
        COUNTS["shop"],
        4,
    )
    for image_id in entry["shown"]:
        answer = _ask(server, team["ben"], "GET", f"/g/shop/v1/images/{image_id}/thumbnail")
        assert answer.status in (200, 409)  # the one whose file vanished


def test_what_each_may_in_each_gallery_is_theirs_there_alone(server: Server, team: dict[str, str]) -> None:
    ways = {
        "read": ("GET", "/v1/gallery", None), "review": ("POST", "/v1/labels/decisions", DECISION),
        "write": ("DELETE", "/v1/images/999999", None), "metrics": ("GET", "/v1/metrics", None),
    }  # fmt: skip
    opened = {
        (who, gallery): {
            right
            for right, (method, path, body) in ways.items()
            if _ask(server, team[who], method, f"/g/{gallery}{path}", json=body).status not in (401, 403)
            and not _is_hidden(_ask(server, team[who], method, f"/g/{gallery}{path}", json=body))
        }
        for who in PEOPLE
        for gallery in ("shop", "fashion")
    }
    everything = {"read", "review", "write", "metrics"}
    assert opened == {
        ("admin", "shop"): everything, ("admin", "fashion"): everything,
        ("anna", "shop"): {"read", "review"}, ("anna", "fashion"): {"read"},
        ("ben", "shop"): {"read"}, ("ben", "fashion"): set(),
        ("carl", "shop"): set(), ("carl", "fashion"): everything,
        ("watcher", "shop"): {"metrics"}, ("watcher", "fashion"): set(),
        ("lost", "shop"): set(), ("lost", "fashion"): set(),
    }  # fmt: skip


def _is_hidden(answer: Answer) -> bool:
    return answer.status == 404 and "no such gallery" in answer.body.decode()


PATHS = (
    "/", "/?view=map", "/v1/gallery", "/v1/health", "/v1/ready", "/v1/nothing", "/page/nav.js", "/page/none.js",
    "/gradio/", "/gradio/config", "/docs/", "/favicon.ico", "/v1/openapi.json", "", "/photos", "/photos/",
    "/photos/v1/gallery", "/g/fashion/v1/gallery",
)  # fmt: skip


@pytest.mark.parametrize(
    ("who", "root"), [(None, None), ("ben", None), ("lost", ""), ("ben", ROOT)],
    ids=["no token", "another's", "path stripped", "path kept"],
)  # fmt: skip
def test_a_gallery_that_one_may_not_look_into_answers_as_one_that_is_not_there(
    server: Server, below: Server, team: dict[str, str], who: str | None, root: str | None
) -> None:
    token, asked = None if who is None else team[who], server if root is None else below
    for method in ("GET", "POST"):
        for path in PATHS:
            seen = [_ask(asked, token, method, f"{root or ''}/g/{name}{path}") for name in ("fashion", "nowhere")]
            hidden, missing = (
                (answer.status, _blank(answer.body), _blank_headers(answer.headers)) for answer in seen
            )
            assert hidden == missing, (method, path)
            assert hidden[0] != 200, (method, path)


def _blank(body: bytes) -> str:
    text = re.sub(r'"request_id":"[^"]*"', "", body.decode())
    return text.replace("nowhere", "NAME").replace("fashion", "NAME")


def _blank_headers(headers: dict[str, str]) -> dict[str, str]:
    """Those that tell something; both names have the same length."""
    return {
        name: _blank(value.encode()) for name, value in headers.items() if name not in ("date", "x-request-id")
    }


def test_who_signs_in_anywhere_is_in_everywhere_that_the_token_opens_and_leaves_at_once(
    server: Server, team: dict[str, str]
) -> None:
    for at in ("/", "/g/shop/"):
        form = f"token={team['anna']}".encode()
        answer = server.ask("POST", at, body=form, headers=FORM)
        given, *attributes = answer.headers["set-cookie"].split("; ")
        assert (answer.status, "path=/" in {text.lower() for text in attributes}) == (303, True)
        cookie = {"Cookie": given}
        for path in ("/v1/galleries", "/g/shop/v1/gallery", "/g/fashion/v1/gallery", "/"):
            assert server.ask("GET", path, headers=cookie).status == 200, path
        assert b"anna" in server.ask("GET", "/", headers=cookie).body
        assert server.ask("POST", "/g/fashion/", body=b"sign_out=", headers={**FORM, **cookie}).status == 303
        for path in ("/v1/galleries", "/g/shop/v1/gallery"):
            assert server.ask("GET", path, headers=cookie).status == 401, path
    refused = server.ask("POST", "/g/fashion/", body=f"token={team['ben']}".encode(), headers=FORM)
    assert (refused.status, "set-cookie" in refused.headers) == (404, False)


def test_decisions_and_logs_are_of_the_gallery_that_they_are_about(
    server: Server, team: dict[str, str], folder: Path
) -> None:
    named = {"X-Request-Id": "decided-in-shop"}
    decided = _ask(server, team["anna"], "POST", "/g/shop/v1/labels/decisions", json=DECISION, headers=named)
    assert decided.status == 200
    lines = {name: [line["request"] for line in read_log(folder / name / "small")] for name in ("shop", "fashion")}
    assert ("decided-in-shop" in lines["shop"], "decided-in-shop" in lines["fashion"]) == (True, False)
    assert _wait_for_line(folder / "access.log", "decided-in-shop")["gallery"] == "shop"


def _wait_for_line(log: Path, request_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look() -> bool:
        lines = map(json.loads, log.read_text().splitlines())
        found[:] = [line for line in lines if line.get("request_id") == request_id]
        return bool(found)

    _wait_until(look)
    return found[0]


def _wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "it did not come to be so in 20 seconds"
        time.sleep(0.05)


_IMAGES = r'retrieval_gallery_images\{gallery="([^"]*)"\} (\d+)\.0'


def test_metrics_of_all_are_told_at_once_and_of_each_only_to_whom_they_concern(
    server: Server, team: dict[str, str]
) -> None:
    def read(who: str) -> dict[str, int]:
        text = _ask(server, team[who], "GET", "/v1/metrics").body.decode()
        assert text.count("# TYPE retrieval_gallery_images ") == 1
        return {name: int(count) for name, count in re.findall(_IMAGES, text)}

    assert (read("admin"), read("watcher")) == (COUNTS, {"shop": COUNTS["shop"]})
    text = _ask(server, team["admin"], "GET", "/v1/metrics").body.decode()
    assert 'retrieval_requests_total{gallery="",method="GET",route="/v1/galleries",status="200"}' in text


def test_both_have_a_gradio_app_of_their_own_whoever_comes_first(
    server: Server, team: dict[str, str], folder: Path
) -> None:
    client = pytest.importorskip("gradio_client")
    with ThreadPoolExecutor() as pool:
        paths = [f"/g/{name}/gradio/config" for name in COUNTS]
        configs = [one.json() for one in pool.map(lambda path: _ask(server, team["admin"], "GET", path), paths)]
    names = [[one["api_name"] for one in config["dependencies"] if one["api_name"]] for config in configs]
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])
    headers = {"Authorization": f"Bearer {team['admin']}"}
    photo = client.handle_file(str(folder / "fashion/images/red/7001.png"))
    with ExitStack() as stack:
        apps = [stack.enter_context(connect(server, f"/g/{name}/gradio/", headers=headers)) for name in COUNTS]
        firsts = [app.predict(image=photo, image_id=None, k=1, api_name="/search")[0] for app in (*apps, apps[0])]
    assert [first["name"].endswith("7001.png") for first in firsts] == [False, True, False]


def test_without_tokens_all_are_open_and_a_wrong_name_is_told(folder: Path) -> None:
    with serve(f"{folder}/shop/small", f"other={folder}/fashion/small", log=folder / "log-open") as server:
        told = json.loads(server.output)
        assert told["galleries"] == {name: f"{told['url']}g/{name}/" for name in ("small", "other")}
        assert [entry["name"] for entry in server.get("/v1/galleries").json()["galleries"]] == ["small", "other"]
        assert server.get("/g/other").headers["location"] == "/g/other/"
        for path in ("/g/nowhere/", "/g/nowhere/v1/gallery", "/g/", "/v1/gallery"):
            assert server.get(path).status == 404, path
        page = server.get("/g/other/").body.decode()
        assert ('href="../../"' in page, "<title>other" in page) == (True, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/shop/small", "{}/fashion/small"], "two galleries have the name small"),
        (["a={}/shop/small", "b={}/shop/small"], "named twice"),
        (["a b={}/shop/small"], "'a b' is no name of a gallery"),
        (["a={}/shop/small", "b={}/fashion/small", "--audit", "{}"], "--audit is about the labels of one gallery"),
        (["a={}/shop/small", "b={}/nowhere"], "nowhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_together_is_refused_with_what_to_do(
    folder: Path, words: list[str], message: str
) -> None:
    done = run(["serve", *(word.format(folder) for word in words), "--port", "0"])
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_a_gallery_that_breaks_leaves_the_others_and_the_list_as_they_are(
    folder: Path, tmp_path: Path, team: dict[str, str]
) -> None:
    for name in COUNTS:
        shutil.copytree(folder / name / "small", tmp_path / name)
    with serve(tmp_path, "--tokens", f"{folder}/team.tokens", log=tmp_path / ".log") as server:
        for catalogue in tmp_path.glob("fashion/versions/*/catalog.sqlite"):
            os.truncate(catalogue, 100)
        listed = {one["name"]: (one["state"], one["images"]) for one in _list(server, team["admin"])}
        assert listed == {"fashion": ("failed", None), "shop": ("ready", COUNTS["shop"])}
        for path in ("/", "/g/shop/", "/g/shop/v1/gallery"):
            assert _ask(server, team["admin"], "GET", path).status == 200, path


def test_who_signed_in_is_told_in_the_logs_of_the_galleries_that_it_opened(
    server: Server, team: dict[str, str], folder: Path
) -> None:
    assert server.ask("POST", "/", body=f"token={team['carl']}".encode(), headers=FORM).status == 303
    _wait_until(lambda: "carl" in _signed_in(folder / "fashion/small"))
    assert "carl" not in _signed_in(folder / "shop/small")


def _signed_in(gallery: Path) -> set[str]:
    return {line["who"] for line in read_log(gallery) if line["what"] == "sign-in"}
