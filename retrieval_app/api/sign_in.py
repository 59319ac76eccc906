"""How a visitor who has the token gets in: by a header, or by the printed address, which sets a cookie."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from retrieval_app.api.access import Access
from retrieval_app.api.refusals import refuse_with

OPEN_PATHS = frozenset(("/v1/health", "/v1/ready"))
"""Those that need no token, and that are answered where there is no other place left."""


def take_token(scope: Scope, headers: Headers, *, access: Access) -> Response | None:
    """Why a request does not pass for want of the token; the address that brings it becomes a cookie."""
    if access.token is None or scope["path"] in OPEN_PATHS:
        return None
    if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
        parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and access.is_token(text) for name, text in parameters):
            kept = [(name, text) for name, text in parameters if name != "token"]
            return _set_cookie(scope, kept, access=access)
    if access.admits(headers):
        return None
    if scope["path"].startswith("/v1"):
        refusal: Response = refuse_with(scope, 401, "a token is needed: Authorization: Bearer TOKEN")
    else:
        message = "This page needs the server's token: open the address that the server printed, /?token=…\n"
        refusal = PlainTextResponse(message, status_code=401)
    refusal.headers["WWW-Authenticate"] = "Bearer"
    return refusal


def _set_cookie(scope: Scope, parameters: list[tuple[str, str]], *, access: Access) -> Response:
    response = RedirectResponse(f"./?{urlencode(parameters)}" if parameters else "./", status_code=303)
    response.set_cookie(
        access.cookie_name,
        access.cookie_value,
        httponly=True,
        samesite="lax",
        secure=scope.get("scheme") == "https",
    )
    response.headers["Cache-Control"] = "no-store"
    return response
