"""A server of several processes: one that is killed cuts only its own connections, and what one knows all know."""

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from index.gallery.verify import verify_gallery
from index.writing.build import update_gallery
from retrieval_app.api.security.tokens import add_token, revoke_token
from retrieval_app.server.app import make_code
from retrieval_app.server.options import ServeOptions
from tests.forked import run
from tests.index.galleries import SMALL
from tests.serving_load import WAIT_S, Load, build_images, draw_png, wait_for_job, write_state
from tests.serving_server import TOKEN, Answer, Server, serve
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server of two workers, of which tests kill some."""
    images = build_images(tmp_path_factory.mktemp("workers"), tiny_model)
    log = str(images.parent / "access")
    with serve_by_two(images, "--writable", "--access-log", log, "--slow-query-ms", "0") as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@contextmanager
def serve_by_two(images: Path, *options: str) -> Iterator[Server]:
    """A server of two workers."""
    with serve(images.parent / "gallery", "--workers", "2", *options, log=images.parent / "log", token=TOKEN) as server:
        wait_for_workers(server)
        yield server


def list_workers(server: Server) -> list[int]:
    """The processes that answer or will, by their numbers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "status").read_text(), (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        if f"\nPPid:\t{server.process.pid}\n" in status and b"spawn_main" in command:
            found.append(int(folder.name))
    return sorted(found)


def wait_for_workers(server: Server, *, without: Collection[int] = ()) -> None:
    """Wait until there are two, none of them among those `without`, and the server answers."""
    wait_for(lambda: len(set(list_workers(server)) - set(without)) == 2)
    wait_for(lambda: ask_until_answered(server, "GET", "/v1/ready").status == 200)


def ask_until_answered(server: Server, method: str, path: str, **sent: object) -> Answer:
    """One request, asked again where its process was killed."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return server.ask(method, path, **sent)  # type: ignore[arg-type]
        except (OSError, HTTPException):
            assert time.monotonic() < deadline


def wait_for_the_end_of(workers: Collection[int]) -> None:
    """Wait until none of these processes is there."""
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def kill_workers(server: Server, workers: Collection[int]) -> None:
    """Kill some, and wait until others answer in their place."""
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_for_workers(server, without=workers)


@contextmanager
def killing(server: Server, *, seed: int) -> Iterator[list[int]]:
    """Kill a worker again and again, any of those that there are, ever more rarely; the list has those that were."""
    chance, stopped, killed = random.Random(seed), threading.Event(), list[int]()

    def kill() -> None:
        # A busy machine may need longer for one job than the first workers live.
        while not stopped.wait(chance.uniform(0.1, 0.6) * (1 + len(killed) / 5)):
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
    """A new version that the server makes itself."""
    job = ask_until_answered(server, "POST", "/v1/update", body=b"").json()["job"]
    wait_for(lambda: ask_until_answered(server, "GET", f"/v1/jobs/{job}").json().get("state") == "done")
    wait_for_version(server, number)


def wait_for_version(server: Server, number: int) -> None:
    """Until all processes serve it, as ten answers in a row say."""
    name = f"{number:06d}"
    wait_for(
        lambda: all(ask_until_answered(server, "GET", "/v1/ready").json().get("version") == name for _ in range(10))
    )


def test_only_connections_of_a_killed_worker_are_cut_while_versions_come_and_go(images: Path) -> None:
    with serve_by_two(images, "--writable") as server:
        load = Load(server, may_be_busy=True, may_be_cut=True)
        with load.running(), killing(server, seed=1) as killed:
            for number in range(2, 5):
                write_state(images, number)
                if number % 2:
                    update_gallery(images.parent / "gallery", config=SMALL)
                    wait_for_version(server, number)
                else:
                    swap_whoever_lives(server, number)
                load.learn()
            wait_for(lambda: len(killed) >= 3 or load.failures)
        assert load.failures == []
        assert set(load.statuses) <= {200, 404, 422, 503}
        assert load.statuses[200] > 10 * (load.statuses[503] + load.cut)
        wait_for_workers(server)
        workers = list_workers(server)
        assert server.stop() == 0
        wait_for_the_end_of(workers)
        assert "Traceback" not in server.log.read_text()
    assert verify_gallery(images.parent / "gallery").problems == []


def test_what_one_worker_was_told_the_others_know_and_a_job_whose_worker_is_killed_is_done(server: Server) -> None:
    photo = server.ask("POST", "/v1/photos", body=draw_png(3)).json()["photo"]
    change = {"image_id": 1, "decision": "change", "label": "other"}
    assert server.post("/v1/labels/decisions", {"decisions": [change]}).status == 200
    images, jobs = server.get("/v1/gallery").json()["images"], list[str]()
    for number in range(4):
        jobs.append(server.ask("POST", "/v1/images?label=constant", body=draw_png(500 + number)).json()["job"])
    # All of them: nobody is left to go on, and those that answer now have not heard of any of it themselves.
    kill_workers(server, list_workers(server))
    assert server.post("/v1/search", {"queries": [{"photo": photo}], "k": 1}).status == 200
    [decision] = server.get("/v1/labels/decisions").json()["decisions"]
    assert decision["new_label"] == "other"
    states = [wait_for_job(server, job) for job in jobs]
    assert [state["state"] for state in states] == ["done"] * len(jobs), states
    wait_for(lambda: server.get("/v1/gallery").json()["images"] == images + len(jobs))


def test_the_gradio_app_says_that_it_needs_one_process(server: Server) -> None:
    for path in ("/gradio", "/gradio/", "/gradio/config"):
        answer = server.get(path)
        assert answer.status == 404
        assert "--workers" in answer.json()["error"]["message"]
    assert b"gradio/" not in server.get("/").body


def test_requests_of_all_workers_add_up_and_are_not_lost_with_them(server: Server) -> None:
    def count() -> float:
        lines = server.get("/v1/metrics").body.decode().splitlines()
        found = [line for line in lines if re.match('retrieval_requests_total{.*route="/v1/facets"', line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    before = count()
    for _ in range(8):
        assert server.get("/v1/facets").status == 200
    assert count() - before == 8
    kill_workers(server, list_workers(server)[:1])
    assert server.get("/v1/facets").status == 200
    assert count() - before == 9
    assert "retrieval_gallery_images" in server.get("/v1/metrics").body.decode()


def test_lines_of_all_workers_are_in_one_log(server: Server) -> None:
    ids = [f"mine-{number}" for number in range(20)]
    for name in ids:
        asked = {"queries": [{"image_id": 1}], "k": 2}
        assert server.ask("POST", "/v1/search", json=asked, headers={"X-Request-Id": name}).status == 200

    def read(event: str) -> list[str]:
        lines = [json.loads(line) for line in server.log.with_name("access").read_text().splitlines()]
        return [line["request_id"] for line in lines if line["event"] == event and line["request_id"] in ids]

    wait_for(lambda: sorted(read("request")) == sorted(read("slow_search")) == sorted(ids))


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_who_is_signed_in_is_so_at_all_workers_and_after_a_new_start_until_signing_out_or_losing_the_token(
    images: Path,
) -> None:
    tokens, gallery = images.parent / "team", images.parent / "gallery"
    _, token = add_token(tokens, "reader", may=["read"])
    options = ("--workers", "2", "--tokens", str(tokens))
    with serve(gallery, *options, log=images.parent / "log") as server:
        wait_for_workers(server)
        form = {**FORM, "Origin": server.url}
        cookies = []
        for _ in range(2):
            answer = server.ask("POST", "/", body=f"token={token}".encode(), headers=form)
            assert answer.status == 303
            cookies.append({"Cookie": answer.headers["set-cookie"].partition(";")[0]})
        first, second = cookies
        assert {server.get("/v1/images", **first).status for _ in range(10)} == {200}
        assert server.get("/v1/images").status == 401
        change = {"decisions": [{"image_id": 1, "decision": "keep"}]}
        sent = {"Origin": server.url, **first}
        assert server.ask("POST", "/v1/labels/decisions", json=change, headers=sent).status == 403
        assert server.get("/v1/metrics", **first).status == 403
        assert server.ask("POST", "/", body=b"sign_out=", headers={**form, **first}).status == 303
        wait_for(lambda: {server.get("/v1/images", **first).status for _ in range(10)} == {401})
        workers, port = list_workers(server), server.port
        server.kill()  # the supervisor alone
        wait_for_the_end_of(workers)
    with serve(gallery, *options, log=images.parent / "log", port=port) as server:
        assert {server.get("/v1/images", **first).status for _ in range(10)} == {401}
        assert {server.get("/v1/images", **second).status for _ in range(10)} == {200}
        revoke_token(tokens, "reader")
        wait_for(lambda: {server.get("/v1/images", **second).status for _ in range(10)} == {401})


def test_the_printed_code_opens_the_page_once_whichever_worker_is_asked(server: Server) -> None:
    code = make_code(ServeOptions.of(server.log.with_name("gallery"), token=TOKEN))
    statuses = [server.ask("GET", f"/?code={code}", headers={"Authorization": ""}).status for _ in range(6)]
    assert (statuses[0], set(statuses[1:]) <= {401, 429}) == (303, True)


def test_a_gallery_that_no_worker_can_open_is_told(images: Path) -> None:
    for catalogue in (images.parent / "gallery").glob("versions/*/catalog.sqlite"):
        os.truncate(catalogue, 100)
    told = run(["serve", images.parent / "gallery", "--port", 0, "--workers", 2])
    assert told.returncode != 0
    assert "catalog.sqlite" in told.stderr.splitlines()[-1]
