"""How a visitor who has the token gets in: by a header, by the one-time address, or by typing it into the page.

Of a request one credential is looked at: the code of the address, or else the header, or else the cookie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import SIGN_IN_HEADERS
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.failed_tries import FailedTries
from retrieval_app.api.security.forwarding import came_by_tls, name_client
from retrieval_app.api.security.sessions import OneTimeCode, Sessions, are_equal
from retrieval_app.api.security.sign_in_config import SignInConfig
from retrieval_app.api.visitors import Visitor, find_visitor, keep_visitor

FORM_PATH, FORM_FIELD = "/", "token"
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 4096
OPEN_PATHS = frozenset(("/v1/health", "/v1/ready"))
"""Those that need no token, and that are answered where there is no other place left."""
_CODE = "code"

Problem = Literal["wrong token", "wrong code", "token in address", "too many tries"]
router = APIRouter(include_in_schema=False)
DrawPage = Callable[[str, Problem | None], str]
"""The page with the field, for a form that is sent to an address; a problem is told above it."""


class SignIn:
    """Lets in who brings the token, and holds back who brings a wrong one.

    Args:
        access: has the token.
        draw: the page for those who come without.
        config: how long wrong ones wait, and right ones hold.
    """

    def __init__(self, access: Access, *, draw: DrawPage, config: SignInConfig | None = None) -> None:
        self._access, self._draw, self._config = access, draw, config or SignInConfig()
        self._sessions, self._code = Sessions(self._config), OneTimeCode(self._config)
        self._tries = FailedTries(self._config)

    @property
    def asks(self) -> bool:
        """Whether there is a token to be asked for."""
        return self._access.token is not None

    def make_code(self) -> str:
        """A code for the address of the first visit: it opens the page once, and nothing else."""
        return self._code.make()

    async def admit(self, scope: Scope, headers: Headers) -> Response | None:
        """Find out who asks; the answer where that is all there is to it."""
        address = name_client(scope, headers)
        if not self.asks:
            keep_visitor(scope, Visitor(is_trusted=self._access.trusts(headers), address=address))
            return None
        visitor = Visitor(address=address, by_tls=came_by_tls(scope, headers))
        keep_visitor(scope, visitor)
        if scope["path"] == FORM_PATH and scope["method"] == "POST":
            return None
        asked = _read_parameters(scope["query_string"]) if scope["path"] == "/" else {}
        if _CODE in asked and scope["method"] == "GET":
            return await self._exchange(scope, headers, codes=asked[_CODE])
        given = _read_bearer(headers)
        if given is not None and not are_equal(given, self._access.token or ""):
            return await self._refuse_wrong(scope, "wrong token")
        if given is not None or self._holds_cookie(scope, headers):
            keep_visitor(scope, replace(visitor, has_token=True, is_trusted=True))
            return None
        if scope["path"] in OPEN_PATHS:
            return None
        return self._ask(scope, "token in address" if FORM_FIELD in asked else None)

    async def take_form(self, scope: Scope, body: bytes) -> Response:
        """The answer to a token that was typed into the page."""
        given = _read_parameters(body).get(FORM_FIELD, [])
        if self._access.token is None or len(given) != 1:
            return self._ask(scope, "wrong token")
        if are_equal(given[0].strip(), self._access.token):
            return self._let_in(scope)
        return await self._refuse_wrong(scope, "wrong token")

    async def _exchange(self, scope: Scope, headers: Headers, *, codes: list[str]) -> Response:
        if len(codes) == 1 and self._code.use(codes[0]):
            return self._let_in(scope)
        if self._holds_cookie(scope, headers):
            return _go_on(scope)
        return await self._refuse_wrong(scope, "wrong code")

    def _holds_cookie(self, scope: Scope, headers: Headers) -> bool:
        # Browsers send the cookies of all ports of a host, and of those some are no cookies by the book.
        brought = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope))
        return brought is not None and self._sessions.hold(brought)

    def _let_in(self, scope: Scope) -> Response:
        response = _go_on(scope)
        response.set_cookie(
            _name_cookie(scope),
            self._sessions.open(),
            httponly=True,
            samesite="lax",  # strict would ask again whoever follows a link to a search from a letter
            secure=find_visitor(scope).by_tls,
        )
        return response

    async def _refuse_wrong(self, scope: Scope, problem: Problem) -> Response:
        what = "a used or wrong address code" if problem == "wrong code" else "a wrong token"
        if await self._tries.hold_back(find_visitor(scope).address, what=what):
            return self._ask(scope, problem)
        if scope["path"].startswith("/v1"):
            message = "too many wrong tokens; wait before the next"
            wait_s = ceil(self._config.failed_try_longest_wait_s)
            refusal: Response = refuse_with(scope, 429, message, retry_after_s=wait_s)
        else:
            refusal = self._show_page(scope, "too many tries", status=429)
        refusal.headers["Connection"] = "close"  # the next guess costs a connection
        return refusal

    def _ask(self, scope: Scope, problem: Problem | None) -> Response:
        if scope["path"].startswith("/v1"):
            words = "the token is wrong" if problem == "wrong token" else "a token is needed"
            refusal: Response = refuse_with(scope, 401, f"{words}: Authorization: Bearer TOKEN")
        elif scope["path"] == "/":
            refusal = self._show_page(scope, problem, status=401)
        else:
            refusal = PlainTextResponse("this needs the server's token: open the page first\n", status_code=401)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    def _show_page(self, scope: Scope, problem: Problem | None, *, status: int) -> Response:
        html = self._draw(_address_after(scope), problem)
        return HTMLResponse(html, status_code=status, headers=dict(SIGN_IN_HEADERS))


def _name_cookie(scope: Scope) -> str:
    """Servers on other ports of the host have cookies of other names."""
    server = scope.get("server")
    return f"retrieval_{server[1] if server is not None else ''}"


def _read_bearer(headers: Headers) -> str | None:
    """The token of the header; another scheme is for a proxy before this server."""
    given = headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if given else ("", "", "")
    if scheme.lower() != "bearer":
        return None
    return text.strip() if len(given) == 1 else ""


def _read_parameters(text: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
        found.setdefault(name, []).append(value)
    return found


def _address_after(scope: Scope) -> str:
    """The page's address, without what was to open it."""
    parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    kept = [(name, text) for name, text in parameters if name not in (_CODE, FORM_FIELD)]
    return f"./?{urlencode(kept)}" if kept else "./"


def _go_on(scope: Scope) -> Response:
    response = RedirectResponse(_address_after(scope), status_code=303)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post(FORM_PATH)
async def take_token(request: Request) -> Response:
    """A cookie for the right token of those who typed one into the page; the form again for another."""
    sign_in: SignIn = request.app.state.sign_in
    return await sign_in.take_form(request.scope, await request.body())
