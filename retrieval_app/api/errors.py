"""Errors as JSON; unexpected ones are logged under the request's id, and only owners see folders of the machine."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from index.errors import GalleryError, ImageError, InputError, ListChangedError, RetrievalError, UnknownImageError
from index.images.image_files import REASONS
from index.text import printable_path
from retrieval_app.api.headers import SECURITY_HEADERS
from retrieval_app.api.schemas import Answer
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.review.bulk import SelectionChangedError
from retrieval_app.review.database import DecidedSinceError, ReviewError
from retrieval_app.review.jobs import JobOverError, UnknownJobError
from retrieval_app.review.places import strip_folders
from retrieval_app.serving.errors import BusyError, NotReadyError, TimedOutError, UnknownPhotoError, is_disk_full

logger = logging.getLogger(__name__)
_STATUSES: dict[int, tuple[str, str]] = {  # the code, and the description in the API's document
    400: ("bad_request", "The request cannot be read, or names another host."),
    401: ("unauthorized", "The server's token is missing or wrong."),
    403: ("forbidden", "Not allowed on this server, or sent by another site."),
    404: ("not_found", "There is no such thing."),
    405: ("method_not_allowed", "The address has no such method."),
    408: ("timeout", "The body did not arrive in time."),
    409: ("conflict", "Something else stands in the way."),
    411: ("length_required", "The length of the body is not announced."),
    413: ("too_large", "The body is too large."),
    415: ("unsupported_media_type", "The body is of a type that is not read."),
    422: ("invalid", "A value is wrong: the message says which."),
    429: (
        "too_many_tries",
        "Too many wrong tokens came from this address: wait for the seconds that Retry-After names.",
    ),
    431: ("head_too_large", "The head of the request is too large."),
    500: ("internal", "A failure of the server, which its log describes."),
    503: (
        "unavailable",
        "Busy, or not ready: try again after the seconds that Retry-After names. `timeout`, which has "
        "none: it was begun and took too long, and may still be done.",
    ),
    507: ("storage_full", "The disk of the server is full: nothing of the request was kept."),
}
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
_SCHEMAS = "#/components/schemas/"
_FAILED = "the server failed; its log has the details under this request's id"
_DISK_FULL = "the server's disk is full, nothing of this was kept; make room on it and send it again"
_PRIVATE = {
    "gallery_unusable": "the gallery cannot be used at the moment; the server's log says why under this request's id",
    "review_unusable": "decisions cannot be read or kept; the server's log says why under this request's id",
}
_EXPECTED: tuple[tuple[type[RetrievalError], int, str | None, str | None, int | None], ...] = (
    # the first that an error is one of: status, code, field, seconds until it may be tried again
    (BusyError, 503, "busy", None, 1),
    (TimedOutError, 503, "timeout", None, None),
    (NotReadyError, 503, "not_ready", None, 5),
    (UnknownPhotoError, 404, None, "photo", None),
    (UnknownJobError, 404, None, "job", None),
    (JobOverError, 409, None, "job", None),
    (DecidedSinceError, 409, None, "step", None),
    (SelectionChangedError, 409, None, "count", None),
    (ReviewError, 409, "review_unusable", None, None),
    (ListChangedError, 409, None, "after", None),
    (UnknownImageError, 404, None, "image_id", None),
    (ImageError, 422, "bad_image", None, None),
    (InputError, 422, None, None, None),
    (GalleryError, 503, "gallery_unusable", None, 5),
    (RetrievalError, 500, None, None, None),
)
_ALWAYS = (400, 401, 403, 422, 429, 500, 503)
BODY_ERRORS = (408, 411, 413, 415, 507)
_MAX_MESSAGE_CHARACTERS = 1000
_MAX_FIELD_CHARACTERS = 200
_MAX_PROBLEMS = 3


class ErrorDetail(Answer):
    """A failure; `field` is the part of the request that is to blame, if any."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(Answer):
    """The response to a request that fails."""

    error: ErrorDetail
    request_id: str


class ApiError(RetrievalError):
    """A refusal with its HTTP status; the code is that of the status unless another one is given."""

    def __init__(self, message: str, *, status: int, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or _STATUSES[status][0]
        self.field = field


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route with these failures and common ones; models on each would double a start's time."""
    content = {"application/json": {"schema": {"$ref": _SCHEMAS + ErrorAnswer.__name__}}}
    return {
        status: {
            "content": content,
            "description": _STATUSES[status][1],
            **({"headers": _RETRY} if status in (429, 503) else {}),
        }
        for status in sorted({*_ALWAYS, *statuses})
    }


def describe_error_schemas() -> dict[str, Any]:
    """The schemas of failures by name, for the OpenAPI document."""
    schema = ErrorAnswer.model_json_schema(ref_template=_SCHEMAS + "{model}")
    return {**schema.pop("$defs"), ErrorAnswer.__name__: schema}


def refuse_with(
    scope: Scope,
    status: int,
    message: str,
    *,
    code: str | None = None,
    field: str | None = None,
    retry_after_s: int | None = None,
) -> Response:
    """The response to a request that failed or is refused; texts may hold lone surrogates."""
    error = {
        "code": code or _STATUSES.get(status, ("error", ""))[0],
        "message": _make_valid(message, _MAX_MESSAGE_CHARACTERS),
        "field": None if field is None else _make_valid(field, _MAX_FIELD_CHARACTERS),
    }
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not waited for
    return JSONResponse({"error": error, "request_id": read_request_id(scope)}, status, headers)


def explain(error: RetrievalError) -> str:
    """The error's message for people: reasons in words, no codes."""
    if not isinstance(error, ImageError):
        return str(error)
    if error.reason == "too-many-pixels":
        return f"{error.path}: {error.detail}; use a smaller copy"
    words = f"{error.path}: {REASONS.get(error.reason, error.reason)}"
    return words if error.reason == "not-an-image" else f"{words} ({error.detail})"


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception of an application as JSON."""
    app.add_exception_handler(RetrievalError, _answer_expected)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(OSError, _answer_expected)
    app.add_exception_handler(Exception, _answer_unexpected)


def add_last_routes(app: FastAPI) -> None:
    """Refuse all other addresses under /v1, before routes that are added later see them."""
    app.mount("/v1", _refuse_rest)


def read_request_id(scope: Scope) -> str:
    """The id of a request, by the middleware."""
    return str(scope.get("state", {}).get("request_id", ""))


async def _refuse_rest(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(405 if _list_methods(Request(scope)) else 404)


async def _answer_expected(request: Request, error: Exception) -> Response:
    scope, request_id = request.scope, read_request_id(request.scope)
    if is_disk_full(error):
        logger.error("request %s: %s", request_id, error)
        return refuse_with(scope, 507, _DISK_FULL)
    if not isinstance(error, RetrievalError):
        raise error
    _, status, code, field, retry_s = next(row for row in _EXPECTED if isinstance(error, row[0]))
    if isinstance(error, ApiError):
        status, code, field = error.status, error.code, error.field
    if isinstance(error, BusyError):
        retry_s = error.retry_after_s
    message, visitor = explain(error), find_visitor(scope)
    if status == 500 or isinstance(error, GalleryError | ReviewError):
        logger.error("request %s: %s", request_id, error)
        if not visitor.knows_failures:
            message = _PRIVATE.get(code or "", _FAILED)
    if not visitor.is_trusted:
        message = strip_folders(message)
    return refuse_with(scope, status, message, code=code, field=field, retry_after_s=retry_s)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [(_name_field(problem["loc"]), _say_problem(problem)) for problem in error.errors()]
    shown = [f"{field}: {words}" if field else words for field, words in problems[:_MAX_PROBLEMS]]
    more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
    return refuse_with(request.scope, 422, "; ".join([*shown, *more]), field=problems[0][0] or None)


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        400: "the body cannot be read: it is no JSON of a sensible size and depth",
        404: f"there is nothing at {printable_path(request.scope['path'][:200])}",
        405: f"{printable_path(request.method[:20])} is not among the methods of this address",
    }.get(error.status_code, str(error.detail))
    answer = refuse_with(request.scope, error.status_code, message)
    answer.headers.update(error.headers or {})
    if error.status_code == 405 and (methods := _list_methods(request)):
        answer.headers["Allow"] = ", ".join(methods)  # Starlette names those of one route only
    return answer


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    request_id = read_request_id(request.scope)
    logger.error("request %s failed", request_id, exc_info=error)
    answer = refuse_with(request.scope, 500, _FAILED)
    # Starlette answers this outside of every middleware, so the headers are added here.
    answer.headers.update({name.decode(): value.decode() for name, value in SECURITY_HEADERS})
    answer.headers["X-Request-Id"] = request_id
    return answer


def _list_methods(request: Request) -> list[str]:
    """The methods of an address in the OpenAPI document, by the most literal template."""
    paths: dict[str, dict[str, Any]] = request.scope["app"].openapi()["paths"]
    for template in sorted(paths, key=lambda template: template.count("{")):
        if compile_path(template)[0].fullmatch(request.scope["path"]):
            return sorted(map(str.upper, paths[template]))
    return []


def _name_field(location: Sequence[str | int]) -> str:
    """`queries.0.weight` of a validation's location, without the part of the request and the kind of a choice."""
    names = list(location[1:])
    for at in range(len(names) - 2, 1, -1):
        if names[at - 2] == "queries" and isinstance(names[at - 1], int):  # elements of `queries` are of several kinds
            del names[at]
    return ".".join(printable_path(str(name)[:_MAX_FIELD_CHARACTERS]) for name in names)


def _say_problem(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "extra_forbidden":
        return "no such field is known"
    if problem["type"] == "string_pattern_mismatch":
        return f"expected a text of the form {problem['ctx']['pattern']}"
    return str(problem["msg"]).removeprefix("Value error, ").removeprefix("String ").removeprefix("Input ")


def _make_valid(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "backslashreplace").decode()
