"""Several galleries on one server: each with rights of its own, and nobody is told of one that is not theirs to see."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.writing.build import update_gallery
from retrieval_app.api.security.tokens import add_token
from retrieval_app.review.activity_log import read_log
from retrieval_app.server.options import ServedGallery, ServeOptions
from tests.conftest import draw_image
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_app import App, open_app
from tests.serving_server import Answer

PEOPLE = {
    "admin": ["write"],
    "anna": ["read", "review:shop"],
    "ben": ["read:shop"],
    "carl": ["write:fashion"],
    "lost": ["read:elsewhere"],
}
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
    return {name: add_token(folder / "team.tokens", name, may=may)[1] for name, may in PEOPLE.items()}


def _serve_both(folder: Path, **options: Any) -> ServeOptions:
    galleries = tuple(ServedGallery(folder / name / "small", name) for name in COUNTS)
    return ServeOptions(galleries, tokens=folder / "team.tokens", **options)


@pytest.fixture(scope="module")
def server(folder: Path, team: dict[str, str]) -> Iterator[App]:
    with open_app(_serve_both(folder, writable=True)) as app:
        yield app


@pytest.fixture(scope="module")
def below(folder: Path, team: dict[str, str]) -> Iterator[App]:
    """One that lives below a path, which a proxy may take away or leave."""
    with open_app(_serve_both(folder, root_path=ROOT)) as app:
        yield app


def _list(server: App, token: str) -> list[dict[str, Any]]:
    answer = server.ask("GET", "/v1/galleries", token=token)
    assert answer.status == 200
    return list(answer.json()["galleries"])


def test_each_is_listed_to_those_who_may_see_it_with_rights(server: App, team: dict[str, str]) -> None:
    told = {
        who: {
            entry["name"]: (entry["permissions"]["review"], entry["permissions"]["write"])
            for entry in _list(server, team[who])
        }
        for who in ("admin", "anna", "ben", "carl")
    }
    assert told == {
        "admin": {"shop": (True, True), "fashion": (True, True)},
        "anna": {"shop": (True, False), "fashion": (False, False)},
        "ben": {"shop": (False, False)},
        "carl": {"fashion": (True, True)},
    }
    page = server.ask("GET", "/", token=team["ben"]).body.decode()
    assert ('href="g/shop/"' in page, "fashion" in page) == (True, False)
    assert server.ask("GET", "/v1/galleries", token=team["lost"]).status == 403
    entry = _list(server, team["ben"])[0]
    assert (entry["path"], entry["state"], entry["images"]) == ("g/shop/", "ready", COUNTS["shop"])


def test_what_each_may_in_each_gallery_is_theirs_there_alone(server: App, team: dict[str, str]) -> None:
    ways = {
        "read": ("GET", "/v1/gallery", None),
        "review": ("POST", "/v1/labels/decisions", DECISION),
        "write": ("DELETE", "/v1/images/999999", None),
    }

    def is_open(who: str, gallery: str, right: str) -> bool:
        method, path, body = ways[right]
        answer = server.ask(method, f"/g/{gallery}{path}", token=team[who], json=body)
        return answer.status not in (401, 403) and b"no such gallery" not in answer.body

    opened = {
        (who, gallery): {right for right in ways if is_open(who, gallery, right)}
        for who in PEOPLE
        for gallery in ("shop", "fashion")
    }
    everything = {"read", "review", "write"}
    assert opened == {
        ("admin", "shop"): everything,
        ("admin", "fashion"): everything,
        ("anna", "shop"): {"read", "review"},
        ("anna", "fashion"): {"read"},
        ("ben", "shop"): {"read"},
        ("ben", "fashion"): set(),
        ("carl", "shop"): set(),
        ("carl", "fashion"): everything,
        ("lost", "shop"): set(),
        ("lost", "fashion"): set(),
    }


PATHS = (
    *("/", "/?view=map", "/v1/gallery", "/v1/ready", "/v1/nothing", "/page/nav.js", "/docs/", "/favicon.ico", ""),
    *("/photos/v1/gallery", "/g/fashion/v1/gallery"),
)


@pytest.mark.parametrize(
    ("who", "root"),
    [(None, None), ("ben", None), ("lost", ""), ("ben", ROOT)],
    ids=["no token", "another's", "path stripped", "path kept"],
)
def test_a_gallery_that_one_may_not_look_into_answers_as_one_that_is_not_there(
    server: App, below: App, team: dict[str, str], who: str | None, root: str | None
) -> None:
    token, asked = None if who is None else team[who], server if root is None else below
    for method in ("GET", "POST"):
        for path in PATHS:
            hidden, missing = (
                _blank(asked.ask(method, f"{root or ''}/g/{name}{path}", token=token))
                for name in ("fashion", "nowhere")
            )
            assert hidden == missing, (method, path)
            assert hidden[0] != 200, (method, path)


def _blank(answer: Answer) -> tuple[int, str]:
    """All that an answer tells; both names have the same length."""
    headers = {name: text for name, text in answer.headers.items() if name not in ("date", "x-request-id")}
    text = re.sub(r'"request_id":"[^"]*"', "", f"{headers}{answer.body.decode()}")
    return answer.status, text.replace("nowhere", "NAME").replace("fashion", "NAME")


def test_a_session_holds_for_all_galleries_of_its_token(server: App, team: dict[str, str]) -> None:
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


def test_ended_sessions_are_over_whichever_gallery_comes_first(folder: Path) -> None:
    shop, fashion = (ServedGallery(folder / name / "small", name) for name in COUNTS)
    token = "a-secret-of-the-tests"
    with open_app(ServeOptions((shop,), token=token)) as server:
        answer = server.ask("POST", "/", body=f"token={token}".encode(), headers=FORM)
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert server.ask("GET", "/v1/galleries", headers=cookie).status == 200
        server.ask("POST", "/", body=b"sign_out=", headers={**FORM, **cookie})
    with open_app(ServeOptions((fashion, shop), token=token)) as server:
        assert server.ask("GET", "/v1/galleries", headers=cookie).status == 401


def test_decisions_and_logs_stay_with_their_gallery(server: App, team: dict[str, str], folder: Path) -> None:
    named = {"X-Request-Id": "decided-in-shop"}
    decided = server.ask("POST", "/g/shop/v1/labels/decisions", token=team["anna"], json=DECISION, headers=named)
    assert decided.status == 200
    lines = {name: [line["request"] for line in read_log(folder / name / "small")] for name in ("shop", "fashion")}
    assert ("decided-in-shop" in lines["shop"], "decided-in-shop" in lines["fashion"]) == (True, False)


def test_a_broken_gallery_leaves_others_alone(folder: Path, tmp_path: Path, team: dict[str, str]) -> None:
    for name in COUNTS:
        shutil.copytree(folder / name / "small", tmp_path / name)
    galleries = tuple(ServedGallery(tmp_path / name, name) for name in COUNTS)
    with open_app(ServeOptions(galleries, tokens=folder / "team.tokens")) as server:
        for catalogue in tmp_path.glob("fashion/versions/*/catalog.sqlite"):
            os.truncate(catalogue, 100)
        listed = {one["name"]: (one["state"], one["images"]) for one in _list(server, team["admin"])}
        assert listed == {"fashion": ("failed", None), "shop": ("ready", COUNTS["shop"])}
        for path in ("/", "/g/shop/", "/g/shop/v1/gallery"):
            assert server.ask("GET", path, token=team["admin"]).status == 200, path


@pytest.mark.parametrize(
    ("galleries", "options", "message"),
    [
        ((("shop", "small"), ("fashion", "small")), {}, "two galleries have the name small"),
        ((("shop", "a"), ("shop", "b")), {}, "named twice"),
        ((("shop", "a b"),), {}, "'a b' is not a valid gallery name"),
    ],
)
def test_what_cannot_be_served_together_is_refused_with_what_to_do(
    folder: Path, galleries: tuple[tuple[str, str], ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ServeOptions(tuple(ServedGallery(folder / path / "small", name) for path, name in galleries), **options)
