"""New versions under load, kills and the end: no request fails, no answer mixes versions, nothing accepted is lost."""

import hashlib
import os
import random
import socket
import threading
import time
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path

from index.gallery.verify import verify_gallery
from index.versions.versions import find_version
from tests.serving_load import WAIT_S, Load, draw_png, swap_by_api, swap_from_outside, write_state
from tests.serving_server import TOKEN, Answer, ask_on, serve
from tests.waiting import wait_for


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
        assert server.get("/v1/metrics").body.decode().count(f'gallery_version="{swaps + 1:06d}"') == 1
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
        kept = {decision["image_id"]: decision["new_label"] for decision in decisions}
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
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)) as metrics:
            deadline = time.monotonic() + WAIT_S
            while (waiting := _count_waiting(ask_on(metrics, "GET", "/v1/metrics", headers=server.headers()))) < 4:
                assert time.monotonic() < deadline, waiting
            with gate:
                ending.set()
            ask_on(metrics, "GET", "/v1/metrics", headers=server.headers())  # it has read those heads, too
        assert len(begun) > len(answers)
        assert server.stop() == 0
        for thread in threads:
            thread.join(WAIT_S)
        assert answers == [200] * len(begun)
        with socket.create_server(("127.0.0.1", server.port)):
            pass
        assert "Traceback" not in server.log.read_text()


def _count_waiting(answer: Answer) -> int:
    lines = answer.body.decode().splitlines()
    return int(float(next(line for line in lines if line.startswith('retrieval_waiting{lane="photos"}')).split()[1]))
