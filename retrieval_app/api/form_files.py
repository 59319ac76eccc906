"""Image bodies of requests: the bytes of a file, or a form with one file, as browsers and `curl -F` send it.

A form is split by searching for its boundary alone, so that no body takes longer to read than it took to arrive.
"""

from typing import Any

from python_multipart.multipart import parse_options_header

from index.text import printable_path
from retrieval_app.api.errors import ApiError
from retrieval_app.api.request_context import RequestContext

BYTES = {"schema": {"type": "string", "format": "binary"}}
"""The OpenAPI content of a binary body."""
_FORM = {
    "type": "object",
    "title": "ImageForm",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {"file": BYTES["schema"]},
}
IMAGE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the bytes of an image file: JPEG, PNG, GIF, WebP, BMP, TIFF or AVIF, under any content type; "
        "or a form with the file in its one field, `file`",
        "content": {"application/octet-stream": BYTES, "multipart/form-data": {"schema": _FORM}},
    }
}
FORM_TYPE = "multipart/form-data"
FIELD = "file"
_MAX_HEAD_BYTES, _MAX_BOUNDARY_CHARACTERS = 4096, 70
_END_OF_HEAD = b"\r\n\r\n"
_EXPECTED = f"expected a form of one file in the field {FIELD!r}, as `curl -F {FIELD}=@query.jpg` sends it"


async def read_image(context: RequestContext) -> bytes:
    """The image of a request."""
    body, kind = await context.request.body(), context.request.headers.get("content-type", "")
    is_form = kind.partition(";")[0].strip().lower() == FORM_TYPE
    return read_form_file(body, kind) if is_form else body


def read_form_file(body: bytes, kind: str) -> bytes:
    """The file of a form."""
    boundary = parse_options_header(kind)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MAX_BOUNDARY_CHARACTERS:
        raise _refuse("its media type has no boundary")
    line = b"--" + boundary
    head_end = body.find(_END_OF_HEAD, 0, _MAX_HEAD_BYTES)
    if not body.startswith(line + b"\r\n") or head_end < 0:
        raise _refuse("it does not begin as a form does")
    _check_field(body[len(line) + 2 : head_end])
    start = head_end + len(_END_OF_HEAD)
    end = body.find(b"\r\n" + line, start)
    if end < 0:
        raise _refuse("it has no end")
    if body[end + 2 + len(line) : end + 6 + len(line)].rstrip(b"\r\n") != b"--":
        raise _refuse("it has more fields, or something behind its end; parameters go into the address")
    return body[start:end]


def _check_field(head: bytes) -> None:
    for text in head.split(b"\r\n"):
        name, _, value = text.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options = parse_options_header(value.strip())[1]
            field = options.get(b"name", b"").decode("utf-8", "replace")
            if field != FIELD:
                raise _refuse(f"its field is {printable_path(field[:100])!r}")
            if b"filename" not in options and b"filename*" not in options:
                raise _refuse(f"its field {FIELD!r} is a text and no file")
            return
    raise _refuse("its field has no name")


def _refuse(seen: str) -> ApiError:
    return ApiError(f"the form: {seen}; {_EXPECTED}", status=422, code="invalid", field="body")
