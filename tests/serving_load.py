"""Clients that ask a server all the while, and check every answer, while versions of its gallery come and go."""

import io
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.index.galleries import SMALL, build
from tests.serving_server import Answer, Server, ask_on
from tests.waiting import wait_for

CONSTANT, CHANGING = 6, 4
CLIENTS = 4
WAIT_S = 60


def draw_png(seed: int, *, side: int = 48) -> bytes:
    buffer = io.BytesIO()
    draw_image((seed * 37 % 256, seed * 91 % 256, seed * 53 % 256), seed=seed, size=(side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def write_state(images: Path, number: int) -> None:
    """Let a folder be what version `number` of the gallery is to have: its own images are below its own name."""
    for folder in images.iterdir():
        if folder.name != "constant":
            shutil.rmtree(folder)
    (images / f"{number:06d}").mkdir()
    for i in range(CHANGING):
        (images / f"{number:06d}" / f"{i}.png").write_bytes(draw_png(1000 + CHANGING * number + i))


@pytest.fixture
def images(tmp_path: Path, tiny_model: Path) -> Path:
    """The images of a gallery, `../gallery`, that is built in its first version."""
    return build_images(tmp_path, tiny_model)


def build_images(place: Path, model: Path) -> Path:
    """The same, in a folder of its own."""
    folder = place / "images"
    (folder / "constant").mkdir(parents=True)
    for i in range(CONSTANT):
        (folder / "constant" / f"{i}.png").write_bytes(draw_png(i))
    write_state(folder, 1)
    build(folder, place / "gallery", model)
    return folder


class _BusyError(Exception):
    """The server answered 503, where it may."""


@dataclass
class Load:
    """Clients that ask all the while; everything that is wrong with an answer is a failure."""

    server: Server
    may_be_busy: bool = False
    constant: list[int] = field(default_factory=list)  # ids that every version has
    changing: list[int] = field(default_factory=list)  # ids of the newest version, gone one version later
    failures: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    etags: dict[int, str] = field(default_factory=dict)
    photo: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)

    def learn(self) -> None:
        """Which ids there are now."""
        listed = self.server.get("/v1/images?limit=500&include=label").json()["images"]
        self.constant = [image["id"] for image in listed if image["label"] == "constant"]
        self.changing = [image["id"] for image in listed if image["label"] != "constant"]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask from now on; at the end all clients have stopped."""
        self.learn()
        self.photo = self.server.ask("POST", "/v1/photos", body=draw_png(7)).json()["photo"]
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join(WAIT_S)

    def _work(self, seed: int) -> None:
        chance, connection = random.Random(seed), HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S)
        asks = (
            self._search_by_id,
            self._search_by_changing_id,
            self._search_by_upload,
            self._search_by_photo,
            self._list,
            self._search_many,
            self._thumbnail,
            self._changing_thumbnail,
            self._facets,
            self._facts,
            self._neighbours,
        )
        while not self.stopped.is_set() and len(self.failures) < 10:
            ask = chance.choice(asks)
            try:
                ask(connection, chance)
            except _BusyError:
                self.stopped.wait(0.05)
            except (OSError, HTTPException, AssertionError, KeyError, ValueError) as error:
                self.failures.append(f"{ask.__name__}: {type(error).__name__}: {error}")
                connection.close()
        connection.close()

    def _ask(self, connection: HTTPConnection, method: str, path: str, **sent: Any) -> Answer:
        answer = ask_on(connection, method, path, headers=self.server.headers(), **sent)
        self.statuses[answer.status] += 1
        if answer.status == 503 and self.may_be_busy:
            assert answer.json()["error"]["code"] == "busy", answer
            assert int(answer.headers["retry-after"]) >= 1, answer
            raise _BusyError
        return answer

    def _check(self, answer: dict[str, Any], entries: list[dict[str, Any]], *, count: int) -> None:
        """All entries are those of the version that the answer says it is from."""
        version = answer["version"]
        self.versions[version] += 1
        assert len(entries) == count, f"{len(entries)} of {count} in {answer}"
        for entry in entries:
            assert entry["label"] in ("constant", version), answer
            assert entry["path"].partition("/")[0] == entry["label"], answer

    def _search_by_id(self, connection: HTTPConnection, chance: random.Random) -> None:
        query = {"queries": [{"image_id": chance.choice(self.constant)}], "k": 50, "include": ["label", "path"]}
        answer = self._ask(connection, "POST", "/v1/search", json=query)
        assert answer.status == 200, answer
        self._check(answer.json(), answer.json()["hits"], count=CONSTANT + CHANGING - 1)

    def _search_by_changing_id(self, connection: HTTPConnection, chance: random.Random) -> None:
        crop = chance.choice([None, {"x": 0.1, "y": 0.1, "width": 0.8, "height": 0.8}])
        part = {"image_id": chance.choice(self.changing), "crop": crop}
        query = {"queries": [part], "k": 50, "include": ["label", "path"]}
        answer = self._ask(connection, "POST", "/v1/search", json=query)
        if crop is None:
            assert answer.status in (200, 404), answer
        else:  # the image's file may be gone before its version is
            assert answer.status in (200, 404, 422), answer
        if answer.status == 200:
            self._check(answer.json(), answer.json()["hits"], count=CONSTANT + CHANGING - 1)
        else:
            assert answer.json()["error"]["code"] in ("not_found", "bad_image", "invalid"), answer

    def _search_by_upload(self, connection: HTTPConnection, chance: random.Random) -> None:
        path = "/v1/search/image?k=50&include=label,path"
        answer = self._ask(connection, "POST", path, body=draw_png(chance.randrange(100)))
        assert answer.status == 200, answer
        self._check(answer.json(), answer.json()["hits"], count=CONSTANT + CHANGING)

    def _search_by_photo(self, connection: HTTPConnection, chance: random.Random) -> None:
        parts = [{"photo": self.photo}, {"image_id": self.constant[0], "weight": 0.5}]
        query = {"queries": parts, "k": 50, "include": ["label", "path"], "where": "label IS NOT NULL"}
        answer = self._ask(connection, "POST", "/v1/search", json=query)
        assert answer.status == 200, answer
        self._check(answer.json(), answer.json()["hits"], count=CONSTANT + CHANGING - 1)

    def _search_many(self, connection: HTTPConnection, chance: random.Random) -> None:
        one = {"queries": [{"image_id": self.constant[1]}], "k": 50, "include": ["label", "path"]}
        answer = self._ask(connection, "POST", "/v1/search/batch", json={"searches": [one] * 8})
        assert answer.status == 200, answer
        results = answer.json()["results"]
        assert len({result["version"] for result in results}) == 1
        for result in results:
            self._check(result, result["hits"], count=CONSTANT + CHANGING - 1)

    def _list(self, connection: HTTPConnection, chance: random.Random) -> None:
        path = chance.choice(("/v1/images?limit=500", "/v1/images/random?count=50", "/v1/images?text=png&limit=99"))
        answer = self._ask(connection, "GET", f"{path}&include=label,path")
        assert answer.status == 200, answer
        assert answer.json()["total"] == CONSTANT + CHANGING
        self._check(answer.json(), answer.json()["images"], count=CONSTANT + CHANGING)

    def _thumbnail(self, connection: HTTPConnection, chance: random.Random) -> None:
        image_id = chance.choice(self.constant)
        answer = self._ask(connection, "GET", f"/v1/images/{image_id}/thumbnail?side=64")
        assert answer.status == 200, answer
        assert self.etags.setdefault(image_id, answer.headers["etag"]) == answer.headers["etag"]

    def _changing_thumbnail(self, connection: HTTPConnection, chance: random.Random) -> None:
        image_id, kind = chance.choice(self.changing), chance.choice(["thumbnail", "preview", "vector", "labels"])
        answer = self._ask(connection, "GET", f"/v1/images/{image_id}/{kind}")
        assert answer.status in (200, 404), answer
        if answer.status == 404:
            assert answer.json()["error"]["code"] in ("not_found", "bad_image"), answer

    def _facets(self, connection: HTTPConnection, chance: random.Random) -> None:
        answer = self._ask(connection, "GET", "/v1/facets")
        assert answer.status == 200, answer
        values = answer.json()
        labels = next(facet for facet in values["facets"] if facet["name"] == "label")
        found = {value["value"]: value["count"] for value in labels["values"]}
        assert found == {"constant": CONSTANT, values["version"]: CHANGING}, values

    def _facts(self, connection: HTTPConnection, chance: random.Random) -> None:
        answer = self._ask(connection, "GET", "/v1/gallery")
        assert answer.status == 200, answer
        assert set(answer.json()["labels"]["names"]) == {"constant", answer.json()["version"]}, answer
        self.versions[answer.json()["version"]] += 1

    def _neighbours(self, connection: HTTPConnection, chance: random.Random) -> None:
        answer = self._ask(connection, "GET", f"/v1/images/{self.constant[0]}/labels?k=50")
        assert answer.status == 200, answer
        labels = {share["label"] for share in answer.json()["shares"]}
        assert labels == {"constant", answer.json()["version"]}, answer


def wait_for_job(server: Server, job: str) -> dict[str, Any]:
    """A job that has ended."""

    def ask() -> dict[str, Any] | None:
        answer = server.get(f"/v1/jobs/{job}").json()
        return answer if answer.get("state") in ("done", "failed") else None

    return wait_for(ask)


def swap_by_api(server: Server, number: int) -> None:
    """A new version that the server makes itself, and serves when the job is done."""
    job = wait_for_job(server, server.ask("POST", "/v1/update", body=b"").json()["job"])
    assert job["state"] == "done", job
    assert server.get("/v1/ready").json()["version"] == f"{number:06d}"


def swap_from_outside(server: Server, number: int) -> None:
    """A new version that another process makes."""
    update_gallery(Path(server.log.parent / "gallery"), config=SMALL)
    wait_for(lambda: server.get("/v1/ready").json()["version"] == f"{number:06d}")
