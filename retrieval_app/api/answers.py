"""JSON answers, and how the description of the API tells of bytes."""

from __future__ import annotations

import json
from typing import Any

import orjson
from fastapi import Response

from retrieval_app.review.places import hide_folders

BYTES = {"schema": {"type": "string", "format": "binary"}}
"""How the description of the API tells of content that is no text."""
_FORM = {
    "type": "object", "title": "ImageForm", "required": ["file"], "additionalProperties": False,
    "properties": {"file": BYTES["schema"]},
}  # fmt: skip
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the bytes of an image file: JPEG, PNG, GIF, WebP, BMP, TIFF or AVIF, under any content type; "
        "or a form with the file in its one field, `file`",
        "content": {"application/octet-stream": BYTES, "multipart/form-data": {"schema": _FORM}},
    }
}


def send_json(values: Any, *, status: int = 200, folders: bool = True) -> Response:
    """A JSON answer; numpy arrays become lists; without folders of the machine in the paths of images."""
    values = values if folders else hide_folders(values)
    try:
        content = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # metadata may hold halves of surrogate pairs and numbers of any length, which JSON allows
        content = json.dumps(values).encode("ascii")
    return Response(content, status_code=status, media_type="application/json")
