"""New versions under load, kills and the end: no request fails, no answer mixes versions, nothing accepted is lost."""

import hashlib
import io
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from index.gallery.verify import verify_gallery
from index.versions.versions import find_version
from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.index.galleries import SMALL, build
from tests.models import write_tiny_model
from tests.serving_server import TOKEN, Answer, Server, ask_on, serve
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
    folder = tmp_path / "images"
    (folder / "constant").mkdir(parents=True)
    for i in range(CONSTANT):
        (folder / "constant" / f"{i}.png").write_bytes(draw_png(i))
    write_state(folder, 1)
    build(folder, tmp_path / "gallery", tiny_model)
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
            *(self._search_by_id, self._search_by_changing_id, self._search_by_upload, self._search_by_photo),
            *(self._list, self._thumbnail, self._changing_thumbnail, self._facets, self._facts, self._neighbours),
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

    def _list(self, connection: HTTPConnection, chance: random.Random) -> None:
        path = chance.choice(("/v1/images?limit=500", "/v1/images?limit=50&seed=0", "/v1/images?text=png&limit=99"))
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


def swap_by_api(server: Server, number: int) -> None:
    """A new version that the server makes itself, and serves when the job is done."""
    job = server.ask("POST", "/v1/update", body=b"").json()["job"]
    wait_for(lambda: server.get(f"/v1/jobs/{job}").json()["state"] == "done")
    assert server.get("/v1/ready").json()["version"] == f"{number:06d}"


def swap_from_outside(server: Server, number: int) -> None:
    """A new version that another process makes."""
    update_gallery(Path(server.log.parent / "gallery"), config=SMALL)
    wait_for(lambda: server.get("/v1/ready").json()["version"] == f"{number:06d}")


def test_swaps_under_load_fail_no_request_and_mix_no_answer(images: Path) -> None:
    gallery, swaps = images.parent / "gallery", 8
    with serve(gallery, "--writable", log=images.parent / "log", token=TOKEN) as server:
        load, held = Load(server), list[int]()
        with load.running():
            for number in range(2, swaps + 2):
                write_state(images, number)
                (swap_from_outside if number % 4 == 0 else swap_by_api)(server, number)
                load.learn()
                asked = load.statuses.total()
                wait_for(lambda: load.statuses.total() >= asked + 20 or load.failures)  # noqa: B023 - at once
                held.append(server.resident_bytes())
                if load.failures:
                    break
        assert load.failures == []
        assert server.get("/v1/ready").json()["version"] == f"{swaps + 1:06d}"
        assert held[-1] - held[len(held) // 3] < 40 * 1024 * 1024
        open_versions = set[str]()
        for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if "/versions/" in (target := os.readlink(link)):
                    open_versions.add(target.partition("/versions/")[2].partition("/")[0])
        assert len(open_versions) <= 3  # the files of versions that are gone are closed
        assert len(os.listdir(gallery / "versions")) <= 4
        assert "Traceback" not in server.log.read_text()
    assert len(load.versions) >= swaps
    assert set(load.statuses) <= {200, 404, 422}
    assert load.statuses[200] > 3 * load.statuses[404]


def test_an_upgrade_to_a_model_of_another_width_fails_no_request(images: Path, tmp_path: Path) -> None:
    gallery, model = images.parent / "gallery", write_tiny_model(tmp_path / "wide.onnx", seed=5, width=24)
    failures, versions, stopped = list[str](), Counter[str](), threading.Event()

    def keep_asking(server: Server, photo: str) -> None:
        by_photo = {"queries": [{"photo": photo}, {"image_id": 1, "weight": 0.5}], "k": 50}
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)) as connection:
            while not stopped.is_set():
                asked = ask_on(connection, "POST", "/v1/search", headers=server.headers(), json=by_photo)
                sent = ask_on(
                    connection,
                    "POST",
                    "/v1/search/image?k=50",
                    headers=server.headers(),
                    body=draw_png(versions.total()),
                )
                for answer, count in ((asked, CONSTANT + CHANGING - 1), (sent, CONSTANT + CHANGING)):
                    if answer.status != 200 or len(answer.json()["hits"]) != count:
                        failures.append(str(answer))
                        return
                    versions[answer.json()["version"]] += 1

    with serve(gallery, "--writable", log=images.parent / "log", token=TOKEN) as server:
        photo = server.ask("POST", "/v1/photos", body=draw_png(7)).json()["photo"]
        threads = [threading.Thread(target=keep_asking, args=(server, photo)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        wait_for(lambda: versions["000001"] >= 20 or failures)
        words = [sys.executable, "-m", "retrieval_app", "index", "upgrade", gallery, model]
        upgraded = subprocess.run(words, capture_output=True, text=True, check=False)
        assert upgraded.returncode == 0, upgraded.stderr
        wait_for(lambda: versions["000002"] >= 20 or failures)
        stopped.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert failures == []
        assert server.get("/v1/ready").json()["version"] == "000002"
        job = server.ask("POST", "/v1/images?label=late", body=draw_png(9_999)).json()["job"]
        wait_for(lambda: server.get(f"/v1/jobs/{job}").json()["state"] == "done")
        assert server.get("/v1/ready").json()["version"] == "000003"
        assert "Traceback" not in server.log.read_text()
    assert verify_gallery(gallery).problems == []


def kill_while_adding(gallery: Path, *, round_number: int, accepted: set[str], decided: dict[int, str]) -> None:
    """Start the server, add and decide until a kill at a random moment; what was answered is written down."""
    chance = random.Random(round_number)
    with serve(gallery, "--writable", log=gallery.parent / "log", token=TOKEN) as server:
        ids = [image["id"] for image in server.get("/v1/images?limit=500").json()["images"]]
        killer = threading.Timer(chance.uniform(0, 0.5), server.kill)

        def ask(number: int) -> None:
            data = draw_png(10_000 + 1000 * round_number + number)
            if server.ask("POST", f"/v1/images?label=added{number % 2}", body=data).status == 202:
                accepted.add(hashlib.sha256(data).hexdigest())
            label, image_id = f"label {round_number} {number}", ids[number % len(ids)]
            choice = {"image_id": image_id, "decision": "change", "label": label}
            if server.post("/v1/labels/decisions", {"decisions": [choice]}).status == 200:
                decided[image_id] = label

        ask(0)
        killer.start()
        try:
            for number in count(1):
                ask(number)
        except (OSError, HTTPException):
            killer.join()
        assert server.process.returncode == -9


def check_nothing_is_lost(gallery: Path, *, accepted: set[str], decided: dict[int, str]) -> None:
    """A server that starts after a kill serves the last whole version, and does what the one before had accepted."""
    assert verify_gallery(gallery).problems == []
    before = find_version(gallery).name
    with serve(gallery, "--writable", log=gallery.parent / "log", token=TOKEN) as server:
        assert server.get("/v1/ready").json()["version"] >= before
        deadline, found = time.monotonic() + WAIT_S, set[str]()
        while not accepted <= found:
            assert time.monotonic() < deadline, f"{len(accepted - found)} of {len(accepted)} are lost"
            found, after = set(), -1
            while after is not None:
                page = server.get(f"/v1/images?limit=500&after={after}&include=path").json()
                found |= {Path(image["path"]).stem for image in page["images"]}
                after = page["next_after"]
            time.sleep(0.1)
        decisions = server.get("/v1/labels/decisions").json()["decisions"]
        kept = {decision["image_id"]: decision["decision"]["label"] for decision in decisions}
        # The last decision about an image may have been kept though nobody was told.
        lost = {image_id for image_id, label in decided.items() if not _is_as_new(kept.get(image_id), label)}
        assert lost == set()
        assert server.stop() == 0
    assert verify_gallery(gallery).problems == []


def _is_as_new(kept: str | None, label: str) -> bool:
    return kept is not None and [int(n) for n in kept.split()[1:]] >= [int(n) for n in label.split()[1:]]


def end_while_adding(gallery: Path, *, accepted: set[str]) -> None:
    """Start the server, and end it as one does while it adds; no half work is left."""
    with serve(gallery, "--writable", log=gallery.parent / "log", token=TOKEN) as server:
        for number in range(8):
            data = draw_png(20_000 + number)
            assert server.ask("POST", "/v1/images", body=data).status == 202
            accepted.add(hashlib.sha256(data).hexdigest())
        assert server.stop() == 0
    assert not (gallery / "building").exists()


def test_what_killed_servers_had_accepted_is_there_after_the_next_start(images: Path) -> None:
    accepted, decided = set[str](), dict[int, str]()
    for number in range(4):
        kill_while_adding(images.parent / "gallery", round_number=number, accepted=accepted, decided=decided)
        assert verify_gallery(images.parent / "gallery").problems == []
    assert accepted
    assert decided
    end_while_adding(images.parent / "gallery", accepted=accepted)
    check_nothing_is_lost(images.parent / "gallery", accepted=accepted, decided=decided)


def test_the_end_answers_what_is_under_way_and_frees_the_port(images: Path) -> None:
    photo = draw_png(5, side=2000)
    with serve(images.parent / "gallery", "--writable", log=images.parent / "log", token=TOKEN) as server:
        gate, ending, begun, answers = threading.Lock(), threading.Event(), list[int](), list[int]()

        def upload_until_the_end() -> None:
            while True:
                with closing(HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)) as connection:
                    with gate:  # once `ending` is set, the head of every upload that began is sent
                        if ending.is_set():
                            return
                        connection.putrequest("POST", "/v1/search/image?k=3")
                        for name, value in {**server.headers(), "Content-Length": len(photo)}.items():
                            connection.putheader(name, value)
                        connection.endheaders()
                        begun.append(1)
                    connection.send(photo)
                    answers.append(connection.getresponse().status)

        threads = [threading.Thread(target=upload_until_the_end) for _ in range(12)]
        for thread in threads:
            thread.start()
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)) as health:
            wait_for(lambda: len(begun) >= len(threads))
            with gate:
                ending.set()
            ask_on(health, "GET", "/v1/health")  # it has read those heads, too
        assert len(begun) > len(answers)
        assert server.stop() == 0
        for thread in threads:
            thread.join(WAIT_S)
        assert answers == [200] * len(begun)
        with socket.create_server(("127.0.0.1", server.port)):
            pass
        assert "Traceback" not in server.log.read_text()
