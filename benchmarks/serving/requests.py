"""Requests of the load's clients: to `retrieval serve`, and the same to the peer in its form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

_BOUNDARY = "----aBoundaryThatNoPhotoHolds7d3f"


class Request(NamedTuple):
    """A POST request."""

    path: str
    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Material:
    """The parts of requests.

    Attributes:
        photos: the bytes of image files, in the order in which they are sent, over and over.
        random: chooses the ids.
    """

    k: int
    ids: Sequence[int] = ()
    photos: Sequence[bytes] = ()
    random: Random = field(default_factory=Random)
    turns: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def load(cls, settings: Mapping[str, Any]) -> Material:
        """The parts that settings name: a file of ids (.npy), paths of photos, which are shuffled by `seed`."""
        random = Random(settings["seed"])
        paths = list(settings.get("photos", ()))
        random.shuffle(paths)
        ids = np.load(settings["ids"]).tolist() if "ids" in settings else []
        return cls(settings["k"], ids, [Path(path).read_bytes() for path in paths], random)

    def next_photo(self) -> bytes:
        """The photo whose turn it is."""
        return self.photos[next(self.turns) % len(self.photos)]


def ask_by_id(material: Material) -> Request:
    """A search by the id of a member."""
    body = f'{{"queries":[{{"image_id":{material.random.choice(material.ids)}}}],"k":{material.k}}}'
    return Request("/v1/search", body.encode(), "application/json")


def ask_by_upload(material: Material) -> Request:
    """A search by an uploaded photo, whose answer has paths as that of the peer."""
    return Request(f"/v1/search/image?k={material.k}&include=path", material.next_photo(), "image/jpeg")


def ask_fastapi(material: Material) -> Request:
    """A form with a file, as FastAPI's `UploadFile` takes it, and as browsers and client libraries send files."""
    disposition = 'Content-Disposition: form-data; name="file"; filename="photo.jpg"\r\n'
    head = f"--{_BOUNDARY}\r\n{disposition}Content-Type: image/jpeg\r\n\r\n".encode()
    body = head + material.next_photo() + f"\r\n--{_BOUNDARY}--\r\n".encode()
    return Request(f"/search?k={material.k}", body, f"multipart/form-data; boundary={_BOUNDARY}")


ASKING: dict[str, Callable[[Material], Request]] = {
    "by id": ask_by_id,
    "by upload": ask_by_upload,
    "fastapi": ask_fastapi,
}


def read_paths(body: bytes) -> list[str]:
    """The paths in the answer to an upload, best first."""
    document = json.loads(body)
    return [hit["path"] for hit in (document["hits"] if isinstance(document, dict) else document)]
