"""Middleware: access control, which also reads bodies whole and the root path behind a proxy."""

import re
import secrets

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.api.errors import ApiError, refuse_with
from retrieval_app.api.headers import SECURITY_HEADERS, add_missing, list_headers
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.addresses import comes_from_another_site, strip_root_path
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.api.security.sign_in import FORM_PATH, FORM_TYPE, MAX_FORM_BYTES, SignIn
from retrieval_app.api.security.upload_limits import BodyRoom
from retrieval_app.serving.batching import client_address
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.serving_config import ServingConfig

_IMAGE_PATHS = frozenset(("/v1/photos", "/v1/search/image", "/v1/embed", "/v1/images"))
_API = re.compile(r"/v1/.*", re.DOTALL)
_PAGE = re.compile(r"/(|favicon\.ico|page/([a-z]+/)?[\w.-]+|docs(/[\w.-]*)?)", re.ASCII)
_REQUEST_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
MAX_HEAD_BYTES = 64 * 1024


class RootPath:
    """Root path middleware: removes the path of a server behind a proxy, whether the proxy has removed it or not."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._root_path:
            scope["root_path"] = self._root_path
            within = strip_root_path(scope["path"], self._root_path)
            if within == "":
                await redirect_to_slash(scope, self._root_path)(scope, receive, send)
                return
            scope["path"] = scope["path"] if within is None else within
        await self._app(scope, receive, send)


def redirect_to_slash(scope: Scope, path: str) -> RedirectResponse:
    """A redirect to the page below a path, whose own addresses are relative to it."""
    query = scope["query_string"].decode("latin-1")
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
    address = f"{path}/" + (f"?{query}" if query else "")
    return RedirectResponse(address, status_code=307, headers=headers)


class Security:
    """Refuses what nothing needs, reads bodies, and adds headers to every response."""

    def __init__(self, app: ASGIApp, *, limits: ServingConfig, access: Access, sign_in: SignIn) -> None:
        self._app, self._limits, self._access, self._sign_in = app, limits, access, sign_in
        self._bodies = BodyRoom(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        request_id = request_id if _REQUEST_ID.fullmatch(request_id) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        added = list_headers(scope["path"], request_id)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = add_missing(message.get("headers", ()), added)
                if message["status"] == 200 and (cookie := self._sign_in.renew(scope, headers)) is not None:
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        refusal = self._refuse(scope, headers) or await self._sign_in.admit(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
        else:
            await self._pass_on(scope, receive, send_with_headers, announced=_read_length(headers) or 0)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, *, announced: int) -> None:
        client_address.set(find_visitor(scope).address)
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            async with self._bodies.read(receive, announced=announced) as body:
                if body is not None:
                    await self._app(scope, _receive_again(body, receive), send)
        except BusyError as error:
            refusal = refuse_with(scope, 503, str(error), code="busy", retry_after_s=error.retry_after_s)
            await refusal(scope, receive, send)
        except ApiError as error:
            await refuse_with(scope, error.status, str(error))(scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        path, is_read = scope["path"], scope["method"] in ("GET", "HEAD")
        lines = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if len(scope.get("raw_path") or path) + len(scope["query_string"]) + lines > MAX_HEAD_BYTES:
            return refuse_with(scope, 431, f"the head of the request has more than {MAX_HEAD_BYTES:,} bytes")
        if not self._access.hosts.admit(scope, headers):
            # A page elsewhere must not reach this server by pointing its own name at its address.
            message = "this server answers only to names that it knows: retrieval serve --allowed-host NAME"
            return refuse_with(scope, 400, message, code="host")
        is_page = _PAGE.fullmatch(path) is not None and ".." not in path
        if not is_page and not _API.fullmatch(path):
            return refuse_with(scope, 404, "this server has nothing at that address")
        if is_read and is_page:
            return None
        is_form = self._access.requires_token and path == FORM_PATH and scope["method"] == "POST"
        if is_page and not is_form:
            refusal = refuse_with(scope, 405, f"{scope['method'][:20]} is not among the methods of this address")
            refusal.headers["Allow"] = "GET, HEAD"
            return refusal
        if comes_from_another_site(headers, by_tls=scope["scheme"] == "https"):
            message = f"only this server's own page may {'read from' if is_read else 'send to'} it"
            return refuse_with(scope, 403, message, code="cross_site")
        return None if is_read else self._refuse_body(scope, headers)

    def _refuse_body(self, scope: Scope, headers: Headers) -> Response | None:
        path, length, limits = scope["path"], _read_length(headers), self._limits
        if length is None:
            return refuse_with(scope, 411, "the body must announce its length: Content-Length")
        is_image, is_form = path in _IMAGE_PATHS, path == FORM_PATH
        most = limits.max_upload_bytes if is_image else MAX_FORM_BYTES if is_form else limits.max_json_bytes
        if length > most:
            return refuse_with(scope, 413, f"the body has {length:,} bytes; at most {most:,} are taken")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        expected = None
        if kind.startswith("multipart/") and not (is_image and kind == "multipart/form-data"):
            expected = "a form is taken of images alone; send JSON as the body itself"
        elif is_form and kind != FORM_TYPE:
            expected = f"the body must be {FORM_TYPE}"
        elif length and not (is_form or is_image or kind == "application/json" or kind.endswith("+json")):
            expected = "the body must be JSON, with Content-Type: application/json"
        return None if expected is None else refuse_with(scope, 415, expected)


def _read_length(headers: Headers) -> int | None:
    """The announced length of the body, 0 without one; None where it is unknown."""
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "0")
    return int(length) if re.fullmatch("[0-9]{1,12}", length) else None


def _receive_again(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
