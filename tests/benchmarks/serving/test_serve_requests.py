"""What the load generator asks, and how answers are read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.serving.serve_http import Reply
from benchmarks.serving.serve_requests import (
    ASKING,
    Material,
    ask_by_id,
    ask_by_upload,
    ask_by_vector,
    ask_fastapi,
    ask_for_thumbnail,
    ask_gradio,
    mix,
    read_paths,
)

MATERIAL = Material("host:1", 24, ids=[7], vectors=["[0.5, 1.0]"], photos=[b"one", b"two"], random=Random(0))


def end(conversation, reply: Reply) -> bool:
    """What a conversation says of its last reply."""
    with pytest.raises(StopIteration) as stopped:
        conversation.send(reply)
    return stopped.value.value


@pytest.mark.parametrize(
    ("asking", "first_line", "body"),
    [(ask_by_id, b"POST /v1/search HTTP/1.1", {"queries": [{"image_id": 7}], "k": 24}),
     (ask_by_vector, b"POST /v1/search HTTP/1.1", {"queries": [{"vector": [0.5, 1.0]}], "k": 24}),
     (ask_for_thumbnail, b"GET /v1/images/7/thumbnail?side=256 HTTP/1.1", None)],
)  # fmt: skip
def test_one_request_is_a_question_whose_answer_must_be_200(asking, first_line: bytes, body) -> None:
    for status in (200, 404):
        conversation = asking(MATERIAL)
        head, _, sent = next(conversation).partition(b"\r\n\r\n")
        assert head.startswith(first_line + b"\r\nHost: host:1")
        assert (json.loads(sent) if sent else None) == body
        assert end(conversation, Reply(status, b"{}")) is (status == 200)


def test_photos_are_sent_in_turn_as_the_body_or_as_a_form() -> None:
    material = Material("host:1", 24, photos=[b"one", b"two"])
    first, second, third = (
        next(ask_by_upload(material)),
        next(ask_fastapi(material)),
        next(ask_by_upload(material)),
    )
    assert first.startswith(b"POST /v1/search/image?k=24&include=path HTTP/1.1")
    assert first.endswith(b"\r\n\r\none")
    assert b'name="file"' in second
    assert b"\r\n\r\ntwo\r\n" in second
    assert third.endswith(b"\r\n\r\none")


def test_gradio_is_asked_in_three_steps() -> None:
    conversation = ask_gradio(MATERIAL)
    assert next(conversation).startswith(b"POST /gradio_api/upload ")
    called = conversation.send(Reply(200, b'["/tmp/photo.jpg"]'))
    assert b'{"data": [{"path": "/tmp/photo.jpg"' in called
    assert conversation.send(Reply(200, b'{"event_id": "e1"}')).startswith(b"GET /gradio_api/call/predict/e1 ")
    assert end(conversation, Reply(200, b'event: complete\ndata: [[["a", 1.0]]]\n\n')) is True


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_gradio_fails_where_one_step_fails(steps: int) -> None:
    conversation = ask_gradio(MATERIAL)
    next(conversation)
    for reply in [Reply(200, b'["/tmp/photo.jpg"]'), Reply(200, b'{"event_id": "e1"}')][:steps]:
        conversation.send(reply)
    assert (
        end(conversation, Reply(200, b"event: error\ndata: null\n\n") if steps == 2 else Reply(500, b"")) is False
    )


def test_questions_are_mixed_by_their_shares() -> None:
    begin = mix({"by id": 0.75, "thumbnail": 0.25}, MATERIAL)
    kinds = Counter(next(begin()).split()[0] for _ in range(2000))
    assert kinds[b"GET"] / 2000 == pytest.approx(0.25, abs=0.05)
    assert kinds.keys() == {b"GET", b"POST"}
    assert next(mix({"ready": 1}, MATERIAL)()).startswith(b"GET /v1/ready ")


def test_answers_of_all_servers_are_read_as_paths() -> None:
    ours = Reply(200, json.dumps({"hits": [{"id": 1, "path": "a"}, {"id": 2, "path": "b"}]}).encode())
    fastapi = Reply(200, b'[{"path": "a", "score": 1.0}, {"path": "b", "score": 0.5}]')
    gradio = Reply(200, b'event: heartbeat\ndata: null\n\nevent: complete\ndata: [[["a", 1.0], ["b", 0.5]]]\n\n')
    answers = {"by upload": ours, "fastapi": fastapi, "gradio": gradio}
    assert {name: read_paths(name, reply) for name, reply in answers.items()} == {
        key: ["a", "b"] for key in answers
    }
    assert answers.keys() < ASKING.keys()


def test_material_is_read_from_files_and_photos_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([3, 5]))
    np.save(tmp_path / "vectors.npy", np.array([[0.5, 0.25]], dtype=np.float32))
    photos = [tmp_path / f"{number}.jpg" for number in range(20)]
    for photo in photos:
        photo.write_text(photo.stem)
    files = {"ids": tmp_path / "ids.npy", "vectors": tmp_path / "vectors.npy", "photos": photos}
    orders = [Material.load("h:1", {"k": 2, "seed": seed, **files}).photos for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(photo.stem.encode() for photo in photos)
    loaded = Material.load("h:1", {"k": 2, "seed": 0, **files})
    assert (loaded.ids, loaded.vectors) == ([3, 5], ["[0.5, 0.25]"])
