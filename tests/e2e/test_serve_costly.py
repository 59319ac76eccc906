"""Pictures that cost a decoder minutes or gigabytes, sent to the real server."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

if "CI" not in os.environ:
    pytest.importorskip("gradio", reason="needs the extra `ui`")

from tests.index.costly import jpeg_of_scans, png_of_exif_tags, tiff_of_one_tile
from tests.index.decoding_workers import wait_for_busy_workers, wait_for_the_end_of
from tests.index.hostile import PHOTO, encode
from tests.serving_server import TOKEN, Answer, Server, ask_on, serve

ROUTES = ("/v1/photos", "/v1/search/image", "/v1/embed", "/v1/images")
SCANS = jpeg_of_scans(4000, 5000)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["memory", "tile"])
def test_a_costly_picture_is_refused_with_its_reason(server: Server, route: str, kind: str) -> None:
    data = png_of_exif_tags(25_000, 8_000_000) if kind == "memory" else tiff_of_one_tile(26_000)
    answer = server.ask("POST", route, body=data)
    assert answer.status == 422, answer.body
    expected = "takes more memory or processor time" if kind == "memory" else "26000 x 26000 pixels in a tile"
    assert expected in answer.json()["error"]["message"]


def test_searches_and_photos_go_on_while_costly_pictures_are_decoded(server: Server) -> None:
    answers: list[Answer] = []

    def send() -> None:
        answers.append(server.ask("POST", "/v1/search/image", body=SCANS))

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    wait_for_busy_workers(server.process.pid)
    status = _ask_from_elsewhere(server, encode(PHOTO, "TIFF"))
    is_busy = status == 503  # the machine, on which it waited too long
    if not is_busy:
        assert any(sender.is_alive() for sender in senders)  # it waited for one of them, and not for all
    while status == 503:
        status = _ask_from_elsewhere(server, encode(PHOTO, "TIFF"))
    assert status == 201
    photo, count = encode(PHOTO, "JPEG"), 0
    while any(sender.is_alive() for sender in senders):
        assert server.ask("POST", "/v1/search/image", body=photo).status == 200
        assert server.get("/v1/images/1/thumbnail").status in (200, 404)
        count += 1
    for sender in senders:
        sender.join()
    assert {answer.status for answer in answers} <= {422, 503}  # some may have waited too long for the others
    refused = [answer.json()["error"]["message"] for answer in answers if answer.status == 422]
    assert refused
    assert all("5 s of processor time" in message for message in refused)
    assert count > 10 or is_busy  # in twenty seconds of others' decoding


def test_a_server_that_is_told_to_end_waits_for_no_costly_picture(gallery: Path, tmp_path: Path) -> None:
    with serve(gallery, log=tmp_path / "log", token=TOKEN) as running:
        senders = [threading.Thread(target=_send_and_forget, args=(running,)) for _ in range(8)]
        for sender in senders:
            sender.start()
        workers = wait_for_busy_workers(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=60) == 0
        for sender in senders:
            sender.join()
        wait_for_the_end_of(workers)
        assert "Traceback" not in running.log.read_text()  # as there is where the grace for requests runs out


def _ask_from_elsewhere(server: Server, body: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60, source_address=("127.0.0.2", 0))
    with closing(connection):
        return ask_on(connection, "POST", "/v1/photos", body=body, headers=server.headers()).status


def _send_and_forget(server: Server) -> None:
    try:
        server.ask("POST", "/v1/search/image", body=SCANS)
    except OSError:
        return  # the server is gone
