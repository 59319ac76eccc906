"""What clients ask: of `retrieval serve`, and of the peers the same their way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.serving.serve_http import Conversation, Reply, build_form, build_get, build_post

THUMBNAIL_SIDE = 256
_OK = 200


@dataclass(frozen=True, slots=True)
class Material:
    """What questions are made of.

    Attributes:
        host: HOST:PORT of the server, which every request names.
        vectors: each a JSON list.
        photos: the bytes of image files, in the order in which they are sent, over and over.
        random: chooses ids, vectors, and what is asked next.
    """

    host: str
    k: int
    ids: Sequence[int] = ()
    vectors: Sequence[str] = ()
    photos: Sequence[bytes] = ()
    random: Random = field(default_factory=Random)
    turns: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def load(cls, host: str, settings: Mapping[str, Any]) -> Material:
        """What settings name: files of ids and vectors (.npy), paths of photos, which are shuffled by `seed`."""
        random = Random(settings["seed"])
        paths = list(settings.get("photos", ()))
        random.shuffle(paths)
        ids = np.load(settings["ids"]).tolist() if "ids" in settings else []
        rows = np.load(settings["vectors"]).tolist() if "vectors" in settings else []
        photos = [Path(path).read_bytes() for path in paths]
        return cls(host, settings["k"], ids, [json.dumps(row) for row in rows], photos, random)

    def next_photo(self) -> bytes:
        """The photo whose turn it is."""
        return self.photos[next(self.turns) % len(self.photos)]


def ask_once(request: bytes) -> Conversation:
    """One request, whose answer must be 200."""
    reply = yield request
    return reply.status == _OK


def ask_by_id(material: Material) -> Conversation:
    """What is like a member?"""
    body = f'{{"queries":[{{"image_id":{material.random.choice(material.ids)}}}],"k":{material.k}}}'
    return ask_once(build_post(material.host, "/v1/search", body.encode()))


def ask_by_vector(material: Material) -> Conversation:
    """What is like a vector?"""
    body = f'{{"queries":[{{"vector":{material.random.choice(material.vectors)}}}],"k":{material.k}}}'
    return ask_once(build_post(material.host, "/v1/search", body.encode()))


def ask_by_upload(material: Material) -> Conversation:
    """What is like a photo? The answer has paths, as that of the peers."""
    path = f"/v1/search/image?k={material.k}&include=path"
    return ask_once(build_post(material.host, path, material.next_photo(), content_type="image/jpeg"))


def ask_for_thumbnail(material: Material) -> Conversation:
    """The small picture of a member."""
    chosen = material.random.choice(material.ids)
    return ask_once(build_get(material.host, f"/v1/images/{chosen}/thumbnail?side={THUMBNAIL_SIDE}"))


def ask_fastapi(material: Material) -> Conversation:
    """What is like a photo? A form with a file, which is how FastAPI's `UploadFile` is sent."""
    return ask_once(build_form(material.host, f"/search?k={material.k}", material.next_photo(), field="file"))


def ask_gradio(material: Material) -> Conversation:
    """What is like a photo? As Gradio's clients ask: upload the file, call the function, wait for its event."""
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
    "by id": ask_by_id, "by vector": ask_by_vector, "by upload": ask_by_upload, "thumbnail": ask_for_thumbnail,
    "ready": lambda material: ask_once(build_get(material.host, "/v1/ready")),
    "page": lambda material: ask_once(build_get(material.host, "/")), "fastapi": ask_fastapi, "gradio": ask_gradio,
}  # fmt: skip


def mix(shares: Mapping[str, float], material: Material) -> Callable[[], Conversation]:
    """A function that begins the next conversation: one of `ASKING`, by its share."""
    makers = [partial(ASKING[name], material) for name in shares]
    if len(makers) == 1:
        return makers[0]
    bounds = list(itertools.accumulate(shares.values()))
    return lambda: material.random.choices(makers, cum_weights=bounds)[0]()


def read_paths(asking: str, reply: Reply) -> list[str]:
    """The paths in the answer to an upload, best first."""
    if asking == "by upload":
        return [hit["path"] for hit in json.loads(reply.body)["hits"]]
    if asking == "fastapi":
        return [hit["path"] for hit in json.loads(reply.body)]
    event = next(part for part in reply.body.decode().split("\n\n") if part.startswith("event: complete"))
    return [path for path, _ in json.loads(event.partition("data: ")[2])[0]]
