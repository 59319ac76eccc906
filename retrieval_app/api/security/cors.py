"""Pages of other sites that are let in by name: their scripts may ask the API, with a token and never with a cookie.

What such a page asks is passed on as if a program did. Its answers tell the browser that the page may read them; that
credentials are taken they never say, so browsers send none, and a cookie that comes nevertheless is dropped.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.api.headers import SECURITY_HEADERS

_OF_BROWSERS = (b"origin", b"referer", b"cookie", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest")
_METHODS = "GET, HEAD, POST, DELETE"
_ASKED_HEADERS = "Authorization, Content-Type, If-None-Match, X-Request-Id"
_TOLD_HEADERS = "Content-Disposition, ETag, Retry-After, WWW-Authenticate, X-Request-Id"
_REMEMBERED_S = 600


class CrossOrigin:
    """Lets pages of named sites ask the API.

    Args:
        app: what is behind.
        origins: of these pages; with none, nothing is changed.
    """

    def __init__(self, app: ASGIApp, *, origins: frozenset[str] = frozenset()) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if not self._origins or scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist("origin")
        origin = given[0] if len(given) == 1 and given[0] in self._origins else None

        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.add_vary_header("Origin")
                if origin is not None:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Access-Control-Expose-Headers"] = _TOLD_HEADERS
            await send(message)

        if origin is None:
            await self._app(scope, receive, send_told)
        elif scope["method"] == "OPTIONS":
            await _allow()(scope, receive, send_told)
        else:
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in _OF_BROWSERS]
            await self._app(scope, receive, send_told)


def _allow() -> Response:
    """The answer to a browser that asks first what may be sent."""
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
    headers |= {
        "Access-Control-Allow-Methods": _METHODS, "Access-Control-Allow-Headers": _ASKED_HEADERS,
        "Access-Control-Max-Age": str(_REMEMBERED_S),
    }  # fmt: skip
    return Response(status_code=204, headers=headers)
