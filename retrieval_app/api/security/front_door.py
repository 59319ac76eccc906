"""What stands before the guard: a request that came through a proxy becomes the one that the proxy was sent.

Behind it the client's address, its scheme and the host it asks for are those that count, and paths begin where the
server does.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_app.api.headers import SECURITY_HEADERS
from retrieval_app.api.security.forwarding import drop_forwarding, is_forwarded
from retrieval_app.api.security.root_path import strip_root_path
from retrieval_app.api.security.trusted_proxies import TrustedProxies

_PASSED_ON = (b"via", b"1.1 proxy")  # says no more than that a proxy did
_NO_PORT = 0


class FrontDoor:
    """Gives requests the shape that they had before proxies.

    Args:
        app: what is behind.
        root_path: below which the server lives, without a slash at its end; empty for none.
        proxies: that are believed. Where none are named, nothing of a request is changed.
    """

    def __init__(self, app: ASGIApp, *, root_path: str = "", proxies: TrustedProxies | None = None) -> None:
        self._app, self._root_path, self._proxies = app, root_path, proxies or TrustedProxies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "http":
            if self._proxies:
                _hear(scope, self._proxies)
            if self._root_path:
                scope["root_path"] = self._root_path
                within = strip_root_path(scope["path"], self._root_path)
                if within == "":
                    await redirect_to_slash(scope, self._root_path)(scope, receive, send)
                    return
                scope["path"] = scope["path"] if within is None else within
        await self._app(scope, receive, send)


def _hear(scope: Scope, proxies: TrustedProxies) -> None:
    headers = Headers(scope=scope)
    told = proxies.hear(str((scope.get("client") or ("",))[0]), headers)
    if told is None:
        if is_forwarded(headers):
            scope["headers"] = [*drop_forwarding(scope["headers"]), _PASSED_ON]
        return
    kept = drop_forwarding(scope["headers"])
    if told.host is not None:
        kept = [pair for pair in kept if pair[0] != b"host"] + [(b"host", told.host.encode("latin-1"))]
    scope["headers"] = [*kept, _PASSED_ON]
    scope["client"] = (told.client or "unknown", _NO_PORT)
    scope["scheme"] = told.scheme


def redirect_to_slash(scope: Scope, path: str) -> RedirectResponse:
    """The way to the page below a path, whose own addresses are relative to it."""
    query = scope["query_string"].decode("latin-1")
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
    address = f"{path}/" + (f"?{query}" if query else "")
    return RedirectResponse(address, status_code=307, headers=headers)
