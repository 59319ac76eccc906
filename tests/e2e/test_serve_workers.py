"""A server of several processes: one that is killed fails no request but with 503, and what one knows all know."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

if "CI" not in os.environ:
    pytest.importorskip("gradio", reason="needs the extra `ui`")

from index.gallery.verify import verify_gallery
from retrieval_app.api.security.token_file import add_token
from tests.gradio_clients import connect
from tests.serving_load import WAIT_S, Load, build_images, draw_png, swap_from_outside, wait_for_job, write_state
from tests.serving_server import TOKEN, Server, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server of two workers, of which tests kill some."""
    images = build_images(tmp_path_factory.mktemp("workers"), tiny_model)
    log = str(images.parent / "access")
    with serve_by_two(images, "--writable", "--access-log", log, "--slow-query-ms", "0") as server:
        yield server


@contextmanager
def serve_by_two(images: Path, *options: str) -> Iterator[Server]:
    """A server of two workers, both of which answer."""
    gallery = images.parent / "gallery"
    with serve(gallery, "--workers", "2", *options, log=images.parent / "log", token=TOKEN) as server:
        wait_for_workers(server)
        yield server


def list_workers(server: Server) -> list[int]:
    """The processes that answer, by their numbers."""
    return [worker for starter in list_children(server.process.pid) for worker in list_children(starter)]


def list_children(pid: int) -> list[int]:
    """The processes that a process has started, and that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        if f"\nPPid:\t{pid}\n" in status and "\nState:\tZ" not in status:
            found.append(int(folder.name))
    return sorted(found)


def read_metric(server: Server, name: str, *, having: str = "") -> float:
    """The sum of a metric's values, of those whose labels have some words."""
    lines = server.get("/v1/metrics").body.decode().splitlines()
    found = [line for line in lines if re.match(rf"{name}[ {{]", line) and having in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def wait_for_workers(server: Server, *, without: Collection[int] = ()) -> None:
    """Wait until two answer, none of them among those `without`."""
    deadline = time.monotonic() + WAIT_S
    while len(set(list_workers(server)) - set(without)) < 2 or read_metric(server, "retrieval_workers") < 2:
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.05)


def wait_for_the_end_of(workers: Collection[int]) -> None:
    """Wait until none of these processes is there."""
    deadline = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_workers(server: Server, workers: Collection[int]) -> None:
    """Kill some, and wait until others answer in their place."""
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_for_workers(server, without=workers)


@contextmanager
def killing(server: Server, *, seed: int) -> Iterator[list[int]]:
    """Kill a worker again and again, any of those that answer; the list has those that were."""
    chance, stopped, killed = random.Random(seed), threading.Event(), list[int]()

    def kill() -> None:
        while not stopped.wait(chance.uniform(0.1, 0.6)):
            wait_for_workers(server)
            killed.append(chance.choice(list_workers(server)))
            os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stopped.set()
        thread.join(2 * WAIT_S)


def swap_whoever_lives(server: Server, number: int) -> None:
    """A new version that the server makes itself, asked for again where it answers 503."""
    while (answer := server.ask("POST", "/v1/update", body=b"")).status == 503:
        time.sleep(int(answer.headers["retry-after"]))
    assert wait_for_job(server, answer.json()["job"])["state"] == "done"
    deadline = time.monotonic() + WAIT_S
    while server.get("/v1/ready").json().get("version") != f"{number:06d}":  # who made it may be gone, too
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_request_fails_but_with_503_while_workers_are_killed_and_versions_come_and_go(images: Path) -> None:
    with serve_by_two(images, "--writable") as server:
        load = Load(server, may_be_busy=True)
        with load.running(), killing(server, seed=1) as killed:
            for number in range(2, 6):
                write_state(images, number)
                (swap_from_outside if number % 2 else swap_whoever_lives)(server, number)
                load.learn()
            deadline = time.monotonic() + WAIT_S
            while len(killed) < 4 and not load.failures:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert load.failures == []
        assert set(load.statuses) <= {200, 404, 422, 503}
        assert load.statuses[200] > 5 * load.statuses[503]
        wait_for_workers(server)
        assert read_metric(server, "retrieval_worker_ends_total") == len(killed)
        answered = read_metric(server, "retrieval_requests_total")
        assert answered >= load.statuses.total()  # each once, whoever answered and whether it lives
        assert server.stop() == 0
    assert verify_gallery(images.parent / "gallery").problems == []


def test_what_one_worker_was_told_the_others_know_and_a_job_whose_worker_is_killed_is_done(server: Server) -> None:
    photo = server.ask("POST", "/v1/photos", body=draw_png(3)).json()["photo"]
    change = {"image_id": 1, "decision": "change", "label": "other"}
    assert server.post("/v1/labels/decisions", {"decisions": [change]}).status == 200
    images, jobs = server.get("/v1/gallery").json()["images"], list[str]()
    for round_number in range(2):
        for number in range(4):
            data = draw_png(500 + 10 * round_number + number)
            jobs.append(server.ask("POST", "/v1/images?label=constant", body=data).json()["job"])
        # All of them: nobody is left to go on, and those that answer now have not heard of any of it themselves.
        kill_workers(server, list_workers(server))
        assert server.post("/v1/search", {"queries": [{"photo": photo}], "k": 1}).status == 200
        [decision] = server.get("/v1/labels/decisions").json()["decisions"]
        assert decision["new_label"] == "other"
    states = [wait_for_job(server, job) for job in jobs]
    assert [state["state"] for state in states] == ["done"] * len(jobs), states
    assert server.get("/v1/gallery").json()["images"] == images + len(jobs)


def test_where_no_worker_lives_the_answer_is_503_and_health_comes_back(server: Server) -> None:
    workers = list_workers(server)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while (answer := server.get("/v1/images")).status == 200 and list_workers(server)[:1] == workers[:1]:
        assert time.monotonic() < deadline
    if answer.status != 200:  # others may have come already
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "busy"
        assert "process" in answer.json()["error"]["message"]
    while server.get("/v1/ready").status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_where_what_starts_workers_is_killed_others_answer(server: Server) -> None:
    wait_for_workers(server)
    workers = list_workers(server)
    photo = server.ask("POST", "/v1/photos", body=draw_png(3)).json()["photo"]
    [starter] = [pid for pid in list_children(server.process.pid) if list_children(pid)]
    os.kill(starter, signal.SIGKILL)
    wait_for_workers(server, without=workers)
    assert server.post("/v1/search", {"queries": [{"photo": photo}], "k": 1}).status == 200
    wait_for_the_end_of(workers)


def test_the_gradio_app_is_that_of_one_worker_and_another_has_it_where_that_ends(server: Server) -> None:
    for _ in range(2):
        waiting = {"timeout": WAIT_S}  # for what imports Gradio first
        with connect(server, headers=server.headers(), httpx_kwargs=waiting) as client:
            hits = client.predict(image=None, image_id=1, k=3, where="", by="kind", api_name="/search")
        assert len(hits) == 3
        kill_workers(server, list_workers(server)[:1])


def test_what_workers_count_adds_up_and_is_not_lost_with_them(server: Server) -> None:
    def count() -> float:
        return read_metric(server, "retrieval_answered_total", having="searches")

    before = count()
    for expected in (4, 8):
        for _ in range(4):
            assert server.post("/v1/search", {"queries": [{"image_id": 1}]}).status == 200
        assert count() - before == expected
        kill_workers(server, list_workers(server))
        assert count() - before == expected


def test_requests_reach_a_worker_as_they_came(server: Server) -> None:
    mine = {"X-Request-Id": "mine"}
    for words, status in (
        ("text=%C3%A9%25%26", 200), ("where=label+%3D+%27constant%27", 200), ("where=((", 422),
    ):  # fmt: skip
        answer = server.get(f"/v1/images?{words}", **mine)
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine")
    assert server.get("/v1/no%2Fsuch/%25").status == 404
    assert server.get("/v1/images", **{"X-Retrieval-Asked": "{}"}).status == 200  # nobody else is believed
    assert server.get("/page/base.css").status == 404
    head = server.ask("HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    thumbnail = server.get("/v1/images/1/thumbnail")
    assert server.get("/v1/images/1/thumbnail", **{"If-None-Match": thumbnail.headers["etag"]}).status == 304
    search = {"queries": [{"image_id": 1}], "k": 2}
    assert server.ask("POST", "/v1/search", json=search, headers={"X-Request-Id": "mine-too"}).status == 200
    log, slow, deadline = server.log.with_name("access"), list[dict[str, Any]](), time.monotonic() + WAIT_S
    while not slow:
        assert time.monotonic() < deadline
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        slow = [line for line in lines if line["event"] == "slow_search" and line["request_id"] == "mine-too"]
    assert {line["route"] for line in lines if line["event"] == "request"} >= {
        "/v1/images", "/v1/images/{image_id}/thumbnail", "/v1/metrics", "none",
    }  # fmt: skip
    assert slow[0]["searches"][0]["k"] == 2
    assert "search" in slow[0]["searches"][0]["ms"]


def test_who_is_signed_in_is_so_at_all_workers_which_end_with_their_front_even_where_it_is_killed(
    images: Path,
) -> None:
    tokens, gallery = images.parent / "team", images.parent / "gallery"
    _, token = add_token(tokens, "reader", may=["read"])
    with serve(gallery, "--workers", "2", "--tokens", str(tokens), log=images.parent / "log") as server:
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": server.url}
        answer = server.ask("POST", "/", body=f"token={token}".encode(), headers=form)
        assert answer.status == 303
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        for _ in range(4):
            assert server.get("/v1/images", **cookie).status == 200
        assert server.get("/v1/images").status == 401
        change = {"decisions": [{"image_id": 1, "decision": "keep"}]}
        assert (
            server.ask(
                "POST", "/v1/labels/decisions", json=change, headers={"Origin": server.url, **cookie}
            ).status
            == 403
        )
        assert server.get("/v1/metrics", **cookie).status == 403
        workers = list_workers(server)
        assert len(workers) == 2
        server.kill()
        wait_for_the_end_of(workers)
