"""Requests of the load's clients: to `retrieval serve`, and the same to the peers in their form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.serving.http import Conversation, Reply, build_form, build_get, build_post

_OK = 200


@dataclass(frozen=True, slots=True)
class Material:
    """The parts of requests.

    Attributes:
        host: HOST:PORT of the server.
        photos: the bytes of image files, in the order in which they are sent, over and over.
        random: chooses the ids.
    """

    host: str
    k: int
    ids: Sequence[int] = ()
    photos: Sequence[bytes] = ()
    random: Random = field(default_factory=Random)
    turns: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def load(cls, host: str, settings: Mapping[str, Any]) -> Material:
        """The parts that settings name: a file of ids (.npy), paths of photos, which are shuffled by `seed`."""
        random = Random(settings["seed"])
        paths = list(settings.get("photos", ()))
        random.shuffle(paths)
        ids = np.load(settings["ids"]).tolist() if "ids" in settings else []
        photos = [Path(path).read_bytes() for path in paths]
        return cls(host, settings["k"], ids, photos, random)

    def next_photo(self) -> bytes:
        """The photo whose turn it is."""
        return self.photos[next(self.turns) % len(self.photos)]


def ask_once(request: bytes) -> Conversation:
    """One request, whose answer must be 200."""
    reply = yield request
    return reply.status == _OK


def ask_by_id(material: Material) -> Conversation:
    """A search by the id of a member."""
    body = f'{{"queries":[{{"image_id":{material.random.choice(material.ids)}}}],"k":{material.k}}}'
    return ask_once(build_post(material.host, "/v1/search", body.encode()))


def ask_by_upload(material: Material) -> Conversation:
    """A search by an uploaded photo, whose answer has paths as that of the peers."""
    path = f"/v1/search/image?k={material.k}&include=path"
    return ask_once(build_post(material.host, path, material.next_photo(), content_type="image/jpeg"))


def ask_fastapi(material: Material) -> Conversation:
    """A form with a file, as FastAPI's `UploadFile` takes it."""
    return ask_once(build_form(material.host, f"/search?k={material.k}", material.next_photo(), field="file"))


def ask_gradio(material: Material) -> Conversation:
    """As Gradio's clients do it: upload the file, call the function, wait for its event."""
    reply = yield build_form(material.host, "/gradio_api/upload", material.next_photo(), field="files")
    if reply.status != _OK:
        return False
    photo = {"path": json.loads(reply.body)[0], "meta": {"_type": "gradio.FileData"}}
    body = json.dumps({"data": [photo]}).encode()
    reply = yield build_post(material.host, "/gradio_api/call/predict", body)
    if reply.status != _OK:
        return False
    event = json.loads(reply.body)["event_id"]
    reply = yield build_get(material.host, f"/gradio_api/call/predict/{event}")
    return reply.status == _OK and b"event: complete" in reply.body


ASKING: dict[str, Callable[[Material], Conversation]] = {
    "by id": ask_by_id,
    "by upload": ask_by_upload,
    "fastapi": ask_fastapi,
    "gradio": ask_gradio,
    "ready": lambda material: ask_once(build_get(material.host, "/v1/ready")),
}


def read_paths(asking: str, reply: Reply) -> list[str]:
    """The paths in the answer to an upload, best first."""
    if asking == "by upload":
        return [hit["path"] for hit in json.loads(reply.body)["hits"]]
    if asking == "fastapi":
        return [hit["path"] for hit in json.loads(reply.body)]
    event = next(part for part in reply.body.decode().split("\n\n") if part.startswith("event: complete"))
    return [path for path, _ in json.loads(event.partition("data: ")[2])[0]]
