"""A team's day: two galleries behind nginx with TLS below a path, an admin, two reviewers and a reader; one token is
revoked, one gallery gets a new version, the server starts anew, and a backup is brought back elsewhere.

Nobody sees what they may not, and nothing that was decided is lost.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index.writing.build import build_gallery
from retrieval_app.review.activity_log import read_log
from tests.conftest import draw_image
from tests.forked import run
from tests.proxies import HOST, Site, find_port, put, read_recipe, require_programs, run_nginx
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import Answer, Server, serve
from tests.waiting import wait_for

require_programs("nginx", "openssl")
ROOT_PATH = "/photos"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MAY = {
    "boss": ["write"],
    "anna": ["review:shop", "read:fashion"],
    "ben": ["review:shop", "review:fashion"],
    "rita": ["read:shop"],
}


@dataclass
class Person:
    """Somebody at a browser: signed in by a token, which is typed once."""

    name: str
    token: str
    site: Site
    cookie: dict[str, str] = field(default_factory=dict)

    def sign_in(self, at: str = "/") -> int:
        """Type the token into the page; the status of the answer."""
        origin = {"Origin": self.site.origin}
        answer = self.site.ask("POST", at, body=f"token={self.token}".encode(), headers={**FORM, **origin})
        if "set-cookie" in answer.headers:
            self.cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        return answer.status

    def ask(self, method: str, path: str, **more: Any) -> Answer:
        """One request as the page sends it."""
        return self.site.ask(method, path, headers={"Origin": self.site.origin, **self.cookie}, **more)

    def status(self, path: str) -> int:
        """Of a page or a part of the API."""
        return self.ask("GET", path).status

    def decide(self, gallery: str, image_id: int, decision: str, **more: str) -> Answer:
        """Judge a label."""
        decisions = [{"image_id": image_id, "decision": decision, **more}]
        return self.ask("POST", f"/g/{gallery}/v1/labels/decisions", json={"decisions": decisions})


def _command(*words: object) -> str:
    done = run(words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def _serving(folder: Path, galleries: Path, *, port: int) -> Iterator[Server]:
    """The server of a folder of galleries, for the proxy at this machine."""
    options = [
        "--writable",
        "--tokens",
        str(folder / "team.tokens"),
        "--root-path",
        ROOT_PATH,
        "--allowed-host",
        HOST,
        "--trusted-proxy",
        "127.0.0.1",
        "--poll-s",
        "0.2",
    ]
    with serve(galleries, *options, log=folder / "log", port=port) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@contextmanager
def _proxied(folder: Path, *, port: int) -> Iterator[Site]:
    """nginx before the server, below the path."""
    below = put(read_recipe("photos.conf"), ("location / {", f"location {ROOT_PATH}/ {{"))
    with run_nginx(below, folder / "nginx", server=port, root=ROOT_PATH) as site:
        yield site


def _decided(person: Person, gallery: str) -> dict[str, str | None]:
    """The labels that people gave, or left, by the names of their images."""
    answer = person.ask("GET", f"/g/{gallery}/v1/labels/decisions")
    assert answer.status == 200
    return {Path(one["path"]).name: one["new_label"] for one in answer.json()["decisions"]}


def _names(person: Person, gallery: str) -> dict[int, str]:
    """The names of a gallery's images by their ids."""
    images = person.ask("GET", f"/g/{gallery}/v1/images?limit=500&include=path").json()["images"]
    return {image["id"]: Path(image["path"]).name for image in images}


def _morning(boss: Person, anna: Person, ben: Person, rita: Person) -> None:
    """Everybody signs in, sees what is theirs, and two of them judge labels."""
    for person in (boss, anna, ben, rita):
        assert person.status("/") == 401
        assert person.sign_in() == 303
        assert person.cookie, person.name
    seen = {
        person.name: [one["name"] for one in person.ask("GET", "/v1/galleries").json()["galleries"]]
        for person in (boss, anna, ben, rita)
    }
    both = ["fashion", "shop"]
    assert seen == {"boss": both, "anna": both, "ben": both, "rita": ["shop"]}
    for path in ("/g/fashion/", "/g/fashion/v1/gallery", "/g/fashion/v1/images/1/preview", "/g/fashion/gradio/"):
        assert (rita.status(path), anna.status(path)) == (404, 200), path
    assert anna.decide("shop", 1, "change", label="hat").status == 200
    assert ben.decide("shop", 2, "drop").status == 200
    assert ben.decide("fashion", 3, "change", label="scarf").status == 200
    assert (anna.decide("fashion", 4, "keep").status, rita.decide("shop", 4, "keep").status) == (403, 403)
    assert rita.decide("fashion", 4, "keep").status == 404
    assert anna.ask("POST", "/g/shop/v1/update").status == 403
    assert ben.ask("DELETE", "/g/shop/v1/images/1").status == 403
    tables = [who.ask("GET", "/g/shop/v1/labels/file").body.decode() for who in (anna, rita)]
    assert ["/shop/images/red/" in table for table in tables] == [True, False]


def _revoked_at_noon(folder: Path, anna: Person, ben: Person) -> None:
    """One reviewer's token is taken back: his pages end, what he decided stays, and nobody else notices."""
    _command("tokens", "revoke", folder / "team.tokens", "ben")
    wait_for(lambda: ben.status("/g/shop/v1/gallery") == 401)
    assert [ben.status(path) for path in ("/", "/g/shop/", "/g/fashion/v1/gallery")] == [401, 401, 401]
    assert (ben.decide("shop", 5, "drop").status, ben.sign_in()) == (401, 401)
    assert anna.decide("shop", 5, "keep").status == 200
    assert len(_decided(anna, "shop")) == 3


def _new_version(folder: Path, boss: Person, rita: Person) -> None:
    """The admin sends a photo, and another is put among the images: both are found, by all who were searching."""
    before = rita.ask("GET", "/g/shop/v1/gallery").json()["version"]
    photo = folder / "sent.png"
    draw_image((250, 250, 10), seed=77).save(photo)
    job = boss.ask("POST", "/g/shop/v1/images?name=sent.png&label=yellow", body=photo.read_bytes()).json()["job"]
    wait_for(lambda: boss.ask("GET", f"/g/shop/v1/jobs/{job}").json()["state"] == "done")
    draw_image((10, 250, 250), seed=78).save(folder / "shop/images/red/put.png")
    _command("index", "update", folder / "galleries/shop")
    wait_for(lambda: _holds_the_new(rita))
    found = rita.ask("POST", "/g/shop/v1/search/image?k=1&include=label", body=photo.read_bytes()).json()
    assert found["hits"][0]["label"] == "yellow"
    assert rita.ask("GET", "/g/shop/v1/gallery").json()["version"] != before
    assert rita.ask("GET", "/g/fashion/v1/gallery").status == 404


def _after_the_restart(boss: Person, anna: Person, ben: Person, rita: Person) -> None:
    """Sessions, tokens and decisions are what they were before; the revoked token opens nothing."""
    assert [person.status("/g/shop/v1/gallery") for person in (boss, anna, ben, rita)] == [200, 200, 401, 200]
    assert ben.sign_in("/g/shop/") == 401
    _check_decisions(anna, boss)
    assert _holds_the_new(rita)
    assert rita.status("/g/fashion/") == 404


def _holds_the_new(person: Person) -> bool:
    """Whether the shop has the photo that was sent, named by its bytes, and the one that was put among its images."""
    names = _names(person, "shop").values()
    return "put.png" in names and any(re.fullmatch(r"[0-9a-f]{64}\.png", name) for name in names)


def _check_decisions(anna: Person, boss: Person) -> None:
    names = _names(anna, "shop")
    assert 2 not in names  # a dropped image leaves the lists, and stays in the gallery
    dropped = Path(anna.ask("GET", "/g/shop/v1/images/2").json()["path"]).name
    assert _decided(anna, "shop") == {names[1]: "hat", dropped: None, names[5]: None}
    assert [*_decided(boss, "fashion").values()] == ["scarf"]


def _back_up_and_restore(folder: Path, *, model: Path) -> Path:
    """Both galleries, built anew elsewhere from their images, with what people made of them."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for name in ("shop", "fashion"):
        _command("backup", folder / "galleries" / name, "--out", folder / f"{name}.zip")
        build_gallery(model_path=model, sources=[folder / name / "images"], out=elsewhere / name)
        _command("restore", folder / f"{name}.zip", "--gallery", elsewhere / name)
    return elsewhere


def test_a_teams_day(tmp_path: Path, tiny_model: Path) -> None:
    galleries, port = tmp_path / "galleries", find_port()
    galleries.mkdir()
    for name in ("shop", "fashion"):
        (tmp_path / name).mkdir()
        shutil.move(build_small_gallery(tmp_path / name, model=tiny_model), galleries / name)
    tokens = {}
    for who, may in MAY.items():
        rights = [word for right in may for word in ("--may", right)]
        tokens[who] = _command("tokens", "add", tmp_path / "team.tokens", who, *rights)
    with _proxied(tmp_path, port=port) as site:
        boss, anna, ben, rita = (Person(who, tokens[who], site) for who in MAY)
        with _serving(tmp_path, galleries, port=port):
            _morning(boss, anna, ben, rita)
            _revoked_at_noon(tmp_path, anna, ben)
            _new_version(tmp_path, boss, rita)
        with _serving(tmp_path, galleries, port=port):
            _after_the_restart(boss, anna, ben, rita)
        elsewhere = _back_up_and_restore(tmp_path, model=tiny_model)
        shutil.rmtree(galleries)  # as if the first machine were gone
        with _serving(tmp_path, elsewhere, port=port):
            assert [person.sign_in() for person in (boss, anna, ben, rita)] == [303, 303, 401, 303]
            _check_decisions(anna, boss)
            assert _holds_the_new(rita)
            assert rita.status("/g/fashion/") == 404
        told = [(line["who"], line["what"]) for line in read_log(elsewhere / "shop")]
    assert [pair for pair in told if pair[1] in ("decide-labels", "add")] == [
        ("anna", "decide-labels"),
        ("ben", "decide-labels"),
        ("anna", "decide-labels"),
        ("boss", "add"),
    ]
