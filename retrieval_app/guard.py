"""What stands before every route of the page: only what the page needs gets through, and only what it would send.

Gradio brings many routes that this page has no use for: it proxies URLs, stores uploads, serves files.
"""

from __future__ import annotations

import json
import re

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.service import MAX_UPLOAD_BYTES
from retrieval_app.ui import EVENT_FIELDS

UPLOAD_PATH = "/query"
_MAX_UPLOAD_BODY_BYTES = MAX_UPLOAD_BYTES + 1024
_MAX_EVENT_BYTES = 64 * 1024
_EVENT_KEYS = frozenset(("data", "event_data", "fn_index", "trigger_id", "session_hash"))
_OUR_ROUTES = r"thumb/\d{1,18}|query|query/[0-9a-f]{16}|favicon\.ico"
_GRADIO_PAGE = r"|config|theme\.css|(assets|static|svelte)/.*"
_GRADIO_CALLS = r"gradio_api/(startup-events|heartbeat/\w+|queue/(join|data)|theme\.css)/?"
_SERVED = re.compile(f"/({_OUR_ROUTES}|{_GRADIO_PAGE}|{_GRADIO_CALLS})")
_POLICY = (  # Gradio's templates need eval; nothing may come from or go to another host
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'self'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY.encode()),
)


class Guard:
    """Answers 404 to every path that the page does not need, and refuses what the page would never send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = _refuse(scope)
        if refusal is None and _is_event(scope):
            try:
                body = await Request(scope, receive).body()
            except ClientDisconnect:
                return
            receive = _receive_again(body, receive)
            refusal = None if _could_be_sent_by_page(body) else say(400, "this is no event of the page")
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _refuse(scope: Scope) -> Response | None:
    if scope["type"] != "http" or not _SERVED.fullmatch(scope["path"]):
        return PlainTextResponse("this page does not serve that address", status_code=404)
    if scope["method"] in ("GET", "HEAD"):
        return None
    headers = Headers(scope=scope)
    if _comes_from_another_site(headers):
        return say(403, "only this page itself may send to this server")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not re.fullmatch("[0-9]{1,12}", length):
        return say(411, "the request must announce its length")
    if _is_event(scope) and int(length) > _MAX_EVENT_BYTES:
        return say(413, f"at most {_MAX_EVENT_BYTES // 1024} kB are taken")
    if int(length) > _MAX_UPLOAD_BODY_BYTES:
        return say(413, f"at most {MAX_UPLOAD_BYTES // 1024**2} MB are taken")
    return None


def say(status: int, message: str) -> JSONResponse:
    """A message for people, as the page's own script reads it."""
    return JSONResponse({"message": message}, status_code=status)


def _comes_from_another_site(headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")  # browsers leave it out where the page came over plain HTTP
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def _is_event(scope: Scope) -> bool:
    return scope["method"] not in ("GET", "HEAD") and scope["path"] != UPLOAD_PATH


def _could_be_sent_by_page(body: bytes) -> bool:
    # Gradio takes nested values for files and fetches the URLs they name, before any handler sees them.
    # The page sends none: its data are plain values, and so are the fields of its events.
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(event, dict) or not event.keys() <= _EVENT_KEYS:
        return False
    data, fields = event.pop("data", None), event.pop("event_data", None)
    if not isinstance(data, list):
        return False
    if isinstance(fields, dict):
        if not fields.keys() <= EVENT_FIELDS:
            return False
        data += fields.values()
    else:
        data.append(fields)
    return all(value is None or isinstance(value, str | int | float) for value in (*data, *event.values()))


def _receive_again(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
